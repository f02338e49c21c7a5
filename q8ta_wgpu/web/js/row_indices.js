// Indices of rows that are known before a run: they follow from inputs, and from states that only count.

import { Q8taError } from "./errors.js";

const summed = ({ element, term }, known) => element.map((at, i) => (at < 0 ? 0 : known[at]) + term[i]);

/** The elements that indices follow from, one after the other: of inputs given, and of states by what they hold. */
function sourced({ sources }, given, held) {
  return sources.flatMap(({ name, state }) => Array.from((state ? held : given).get(name), Number));
}

/** Throws where a run would take a row that a table or cache has not. */
export function refuseBeyond(indices, given, held) {
  const known = sourced(indices, given, held), { sources, rows, least, counts, tables, described } = indices;
  const found = summed(rows, known), number = found.findIndex((row, i) => row >= counts[i] || row < least[i]);
  if (number < 0) return;
  let element = rows.element[number];
  const { name, state } = sources.find(({ size }) => (element -= size) < 0);
  const inside = `give row indices from ${least[number]} to ${counts[number] - 1}`;
  const way = state ? "net.reset() lets the network begin anew" : inside;
  const said = `${state ? "state" : "input"} ${name} holds ${known[rows.element[number]]}`;
  const taken = `the run takes row ${found[number]} of ${described[tables[number]]}`;
  throw new Q8taError("input", `${said}, and ${taken}, which has ${counts[number]} rows: ${way}`);
}

/** What states that only count hold after a run, by name. */
export function counted(indices, given, held) {
  const known = sourced(indices, given, held);
  return new Map(Object.entries(indices.states).map(([name, sums]) => [name, summed(sums, known)]));
}
