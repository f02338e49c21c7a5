// What this browser's adapter computes from the cases of the operator table and from whole networks.

import { samples } from "./arrays.js";
import { best, describe, webgpu } from "./device.js";
import { load } from "./network.js";
import { median } from "./timing.js";

const LOSSES = 3; // devices that may be lost before the rest is left out
const TIMING = 2000; // milliseconds in which a network is timed

/** The adapter in words. Raises Q8taError where there is none. */
export async function offered() {
  const adapter = await best(webgpu()), { info } = adapter, limits = {};
  for (const name in adapter.limits) if (typeof adapter.limits[name] === "number") limits[name] = adapter.limits[name];
  return {
    adapter: describe(info) + (info?.isFallbackAdapter ? ", software" : ""),
    features: [...adapter.features].sort(),
    language: [...(navigator.gpu.wgslLanguageFeatures ?? [])].sort(),
    limits,
  };
}

/** Runs every export of an archive: names of those with other bytes, those that did not run with the reason, and times
 * of networks. */
export async function examined({ kernels, networks, get }, report) {
  const found = { run: 0, wrong: [], failed: [], networks: [] }, started = performance.now();
  let lost = 0;
  const tried = async (name, folder, options, work) => {
    let net = null;
    try {
      if (lost >= LOSSES) throw new Error(`left out after ${lost} devices were lost`);
      net = await load(`https://archive/${folder}`, { fetch: get, verify: false, ...options });
      const equal = await net.verify();
      if (!equal) found.wrong.push(name);
      await work?.(net, equal);
      found.run++;
    } catch (error) {
      if (error.code === "lost") lost++;
      found.failed.push({ name, why: error.message });
    }
    net?.destroy();
  };
  for (const [i, name] of kernels.entries()) {
    report(i, kernels.length, name);
    await tried(name, `kernel/${i}`, { kind: "gpu" });
  }
  found.seconds = (performance.now() - started) / 1000;
  for (const [i, name] of networks.entries()) {
    report(kernels.length, kernels.length, name);
    await tried(name, `network/${i}`, {}, async (net, equal) => {
      found.networks.push({ name, equal, bytes: net.bytes, ...(await measured(net)) });
    });
  }
  return found;
}

/** Milliseconds of a call, from array to array, and of its GPU time where the browser has timestamps. */
async function measured(net) {
  const inputs = samples(net.inputs), calls = [];
  for (const start = performance.now(); calls.length < 7 && performance.now() - start < TIMING; ) {
    const before = performance.now();
    await net.run(inputs);
    calls.push(performance.now() - before);
  }
  const gpu = await net.time(inputs, { repeats: 1 }).then(({ ms }) => ms, () => null);
  return { call: median(calls), gpu };
}

/** The report as text, for an issue or a letter. */
export function text({ version, agent, what, found, error }) {
  const lines = [`q8ta_wgpu ${version}: ${verdict(found, error)}`, `browser: ${agent}`];
  if (what) {
    lines.push(`adapter: ${what.adapter}`, `features: ${what.features.join(", ") || "none"}`);
    lines.push(`language features: ${what.language.join(", ") || "none"}`);
    lines.push(`limits: ${Object.entries(what.limits).map((pair) => pair.join(" ")).join(", ")}`);
  }
  if (!found) return lines.join("\n");
  lines.push(`${found.run} compiled and run, kernels in ${found.seconds.toFixed(1)} s`);
  for (const name of found.wrong) lines.push(`WRONG bytes: ${name}`);
  for (const { name, why } of found.failed) lines.push(`did not run: ${name}: ${why}`);
  for (const { name, equal, bytes, call, gpu } of found.networks) {
    const times = `${call.toFixed(2)} ms a call${gpu === null ? "" : `, ${gpu.toFixed(3)} ms on the GPU`}`;
    lines.push(`${name}, ${(bytes / 1000).toFixed(0)} kB: ${equal ? "right" : "WRONG"} bytes, ${times}`);
  }
  return lines.join("\n");
}

/** One sentence. */
export function verdict(found, error) {
  if (!found) return error ? `not checked: ${error}` : "checking";
  const { run, wrong, failed } = found;
  if (wrong.length) return `WRONG bytes from ${wrong.length} of ${run} kernels and networks`;
  if (failed.length) return `right bytes from ${run} kernels and networks, ${failed.length} did not run`;
  return `right bytes from all ${run} kernels and networks`;
}
