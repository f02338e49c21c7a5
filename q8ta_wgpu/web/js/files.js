// Downloads: nothing of a file is used before its size and hash are right.

import { Q8taError } from "./errors.js";

const VERSION = 2;

export function address(url) {
  const text = String(url);
  const file = /\.json([?#]|$)/.test(text) ? text : text.replace(/\/?([?#]|$)/, "/net.json$1");
  return new URL(file, globalThis.document?.baseURI ?? globalThis.location?.href).href;
}

/** The bytes of an address; `get` is `fetch`, or answers like it. */
export async function download(url, get, advance = () => {}) {
  const parts = [];
  try {
    const response = await get(url);
    if (!response.ok) throw new Q8taError("download", `${url} cannot be read: the server says ${response.status}`);
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      advance(value.length);
    }
  } catch (error) {
    if (error instanceof Q8taError) throw error;
    throw new Q8taError("download", `${url} cannot be read: ${error.message}`, error);
  }
  return joined(parts);
}

/** The bytes of typed arrays, one behind the other. */
export function joined(arrays) {
  const whole = new Uint8Array(arrays.reduce((sum, { byteLength }) => sum + byteLength, 0));
  let at = 0;
  for (const { buffer, byteOffset, byteLength } of arrays) {
    whole.set(new Uint8Array(buffer, byteOffset, byteLength), at);
    at += byteLength;
  }
  return whole;
}

function parsed(data, url) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch (error) {
    throw new Q8taError("damaged", `${url} is no JSON: it is damaged, or no file of export_web`, error);
  }
}

const hex = (buffer) => Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
export const sha256 = async (data) => hex(await crypto.subtle.digest("SHA-256", data));

/** A file that net.json describes. Nothing of it is used before its size and hash are right. */
async function checked(file, base, get, advance) {
  const url = new URL(file.url, base).href;
  const data = await download(url, get, advance);
  const wrong = (found, expected) =>
    new Q8taError("damaged", `${url} is damaged, or of another export than net.json: ${found}, expected ${expected}`);
  if (data.length !== file.bytes) throw wrong(`${data.length} bytes`, file.bytes);
  const found = await sha256(data);
  if (found !== file.sha256) throw wrong(`SHA-256 ${found}`, file.sha256);
  return data;
}

export async function index(url, get) {
  const net = parsed(await download(url, get), url);
  if (net?.format !== "q8ta-web") throw new Q8taError("damaged", `${url} is no net.json of export_web`);
  if (net.version === VERSION) return net;
  throw new Q8taError("version", `${url} has version ${net.version}, this q8ta.js reads ${VERSION}: export it again`);
}

export async function files({ program, weights }, url, get, report) {
  const total = program.bytes + weights.bytes;
  let done = 0;
  const advance = (bytes) => report({ stage: "download", done: (done += bytes), total });
  const data = await Promise.all([program, weights].map((file) => checked(file, url, get, advance)));
  return [parsed(data[0], url), data[1]];
}
