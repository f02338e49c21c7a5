// What q8ta.d.ts must take, and what it must refuse; compiled by tsc, never run.
import { load, Network, Outputs, Q8taError } from "../../q8ta_wgpu/web/js/q8ta.js";

const net: Network = await load("./net/", { onprogress: ({ stage, done, total }) => console.log(stage, done / total) });
const y: Outputs = await net.run({ x: new Float32Array(4) });
const canvas = document.createElement("canvas");
const video = document.createElement("video");
await net.draw(video, canvas, { mean: [0.485, 0.456, 0.406], std: 0.5, colours: false });
const { ms, dispatches } = await net.time({ x: new Uint8Array(4) }, { repeats: 3 });
console.log(ms, dispatches[0].kernel, y, (await net.verify()) === true, net.inputs[0].shape.length);
(await net.reopen()).destroy();

// @ts-expect-error: numbers are no input
await net.run({ x: 3 });
// @ts-expect-error: there is no such option
await load("./net/", { quiet: true });
// @ts-expect-error: networks come from load
new Network();

try {
  await load(new URL("./net/", location.href));
} catch (error) {
  if (error instanceof Q8taError) console.log(error.code.length, error.message);
}
