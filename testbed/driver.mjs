// Runs JavaScript that pytest sends, a line of JSON each, with WebGPU by Dawn for Node. argv: options of `create`.
import { webcrypto } from "node:crypto";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.NODE_PACKAGES}/package.json`);
const { create, globals } = await import(pathToFileURL(require.resolve("webgpu")));
Object.assign(globalThis, globals);
globalThis.crypto ??= webcrypto; // Node 18
Object.defineProperty(globalThis, "navigator", { value: { gpu: create(process.argv.slice(2)) }, configurable: true });

const Asynchronous = (async () => {}).constructor;
for await (const line of createInterface({ input: process.stdin })) {
  const { code, given } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await new Asynchronous("given", code)(given)) ?? null };
  } catch (error) {
    answer = { error: `${error.code ?? error.name}: ${error.message}`, stack: error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0); // Dawn's own threads would keep the process
