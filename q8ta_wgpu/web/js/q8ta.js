// Runs what `q8.export_web` wrote on the browser's WebGPU: const net = await load("./net/"); await net.run({ x }).
// q8ta.d.ts says what everything takes and gives.

import { Q8taError } from "./errors.js";
import { Network, load } from "./network.js";

export { Network, Q8taError, load };
