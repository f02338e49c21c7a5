// One compressed file that holds many exports.

import { Q8taError } from "./errors.js";
import { download } from "./files.js";

/** Reads what `export-web --check` packed: its index, and a `fetch` that answers from it. */
export async function archive(url, advance) {
  const data = await download(url, (address) => fetch(address), advance);
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  let whole;
  try {
    whole = await new Response(stream).arrayBuffer();
  } catch (error) {
    throw new Q8taError("damaged", `${url} is damaged: ${error.message}`, error);
  }
  const size = new DataView(whole).getUint32(0, true), start = 4 + size;
  const index = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, size)));
  const get = async (address) => {
    const [offset, bytes] = index.files[new URL(address).pathname.slice(1)];
    return new Response(new Uint8Array(whole, start + offset, bytes));
  };
  return { ...index, get };
}
