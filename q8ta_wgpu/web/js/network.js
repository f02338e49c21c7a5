// A network on a device: loading, running, drawing.

import { elements, inWords, packed, samples, structured, unpacked } from "./arrays.js";
import { best, describe, require, shares, webgpu } from "./device.js";
import { Drawing } from "./drawing.js";
import { Q8taError, gone } from "./errors.js";
import { address, files, index, joined, sha256 } from "./files.js";
import { BUFFER, MAP_READ, dispatched } from "./gpu.js";
import { described, values } from "./inputs.js";
import { Loaded } from "./loaded.js";
import { Picture, isImage } from "./picture.js";
import { timed } from "./timing.js";

const aligned = (size) => Math.ceil(size / 16) * 16;
const shown = ({ name, shape, dtype, scale, zero, bounds }) => ({ name, shape, dtype, scale, zero, bounds });

/** Loads what export_web wrote. Raises Q8taError. */
export async function load(url, options = {}) {
  const net = new Network(address(url), { onprogress() {}, verify: true, ...options });
  await net.reopen(options.device);
  return net;
}

/** A network on a device; `load` makes it. */
export class Network {
  #url;
  #options;
  #device = null;
  #program = null;
  #lost = null;
  #loaded = null;
  #staging = [];
  #images = new Map();
  #shown = null;
  #canvases = new Map();

  constructor(url, options) {
    this.#url = url;
    this.#options = options;
  }

  async reopen(device) {
    this.destroy();
    const { gpu, fetch: get = (url) => fetch(url), onprogress, verify, packed: wanted = true, kind } = this.#options;
    const owner = device ? null : webgpu(gpu);
    const net = await index(this.#url, get), adapter = device ?? (await best(owner));
    const info = device ? device.adapterInfo : adapter.info;
    // Software has programs of its own: a workgroup there is a thread, and barriers cost much.
    const found = net.programs[kind ?? (info?.isFallbackAdapter && net.programs.cpu ? "cpu" : "gpu")];
    require(found.limits, adapter.limits, device ? "the given device" : describe(info));
    const [program, weights] = await files(found, this.#url, get, onprogress);
    this.bytes = found.program.bytes + found.weights.bytes;
    this.inputs = program.inputs.map(shown);
    this.outputs = program.outputs.map(shown);
    this.states = (program.states ?? []).map(shown);
    const opened = device ?? (await shares(owner, adapter, found.limits));
    this.#device = opened;
    this.#program = program;
    this.#lost = null;
    opened.lost.then(({ message }) => this.#device === opened && (this.#lost = message || "no reason was given"));
    this.adapter = describe(info);
    const language = (gpu ?? globalThis.navigator?.gpu)?.wgslLanguageFeatures;
    this.packed = wanted && (language?.has("packed_4x8_integer_dot_product") ?? false);
    try {
      this.#loaded = new Loaded(opened, program, this.adapter, this.packed);
      await this.#loaded.make(weights, onprogress);
      if (verify && program.sample && !(await this.verify())) {
        throw new Q8taError("bytes", `${this.adapter} computes other bytes than the reference: do not use its results`);
      }
    } catch (error) {
      const lost = this.#lost;
      this.destroy();
      throw lost === null || error instanceof Q8taError ? error : gone(lost);
    }
    return this;
  }

  async verify() {
    if (!this.#program?.sample) return null;
    // The sample is of a network as it begins.
    return this.#loaded.states.kept(async () => {
      this.reset();
      const found = await this.#results(samples(this.#program.inputs), {}, false);
      return (await sha256(joined(found))) === this.#program.sample;
    });
  }

  /** What the network keeps from run to run, as it is stored: a typed array by each name. */
  async state() {
    this.#open();
    return this.#loaded.states.read((promise) => this.#waits(promise));
  }

  setState(values) {
    this.#open();
    this.#loaded.states.write(values);
  }

  /** Lets the network begin anew. */
  reset() {
    this.#open();
    this.#loaded.states.reset();
  }

  /** Outputs in the structure of the module's own: typed arrays. */
  async run(inputs, options = {}) {
    const outputs = await this.#results(inputs, options);
    return structured(this.#program.structure, outputs);
  }

  async #results(inputs, options, refuses = true) {
    const device = this.#open(), ports = this.#program.outputs;
    const encoder = this.#encode(inputs, options, refuses);
    let size = 0;
    const places = ports.map(({ bytes }) => (size += aligned(bytes)) - aligned(bytes));
    const usage = BUFFER.MAP_READ | BUFFER.COPY_DST;
    const staging = this.#staging.pop() ?? device.createBuffer({ size, usage });
    try {
      ports.forEach(({ buffer, bytes }, i) => {
        encoder.copyBufferToBuffer(this.#loaded.buffers[buffer], 0, staging, places[i], bytes);
      });
      device.queue.submit([encoder.finish()]);
      await this.#waits(staging.mapAsync(MAP_READ));
      const outputs = ports.map((port, i) => unpacked(port, staging.getMappedRange(places[i], port.bytes)));
      staging.unmap();
      this.#staging.push(staging);
      return outputs;
    } catch (error) {
      staging.destroy();
      throw error;
    }
  }

  /** Runs, and draws an output to a canvas, which takes its size. Nothing comes back to the CPU. */
  async draw(inputs, canvas, options = {}) {
    const device = this.#open();
    const names = this.#program.outputs.map((port) => port.name);
    const port = this.#program.outputs[options.output === undefined ? 0 : names.indexOf(options.output)];
    if (!port?.draw) {
      const there = described(this.#program.outputs);
      throw new Q8taError("input", `only an output of shape (1, 1 or 3, h, w) can be drawn, there are ${there}`);
    }
    const encoder = this.#encode(inputs, options);
    // A grey result may take the colours of its image.
    this.#drawn(port, canvas).draw(encoder, this.#shown, options);
    device.queue.submit([encoder.finish()]);
    await this.#waits(device.queue.onSubmittedWorkDone());
  }

  #drawn(port, canvas) {
    const known = this.#canvases.get(canvas);
    if (known?.port === port) return known;
    known?.destroy();
    const made = new Drawing(this.#device, port, canvas, this.#loaded.buffers[port.buffer]);
    this.#canvases.set(canvas, made);
    return made;
  }

  /** Milliseconds of GPU time: medians, of a whole run and of every dispatch. */
  async time(inputs, { repeats = 20, ...options } = {}) {
    const device = this.#open();
    if (!device.features.has("timestamp-query")) {
      throw new Q8taError("timestamps", `${this.adapter} or its device has no timestamp-query`);
    }
    return this.#loaded.states.kept(() => {
      device.queue.submit([this.#encode(inputs, options, false).finish()]);
      return timed(device, this.#loaded, repeats, (promise) => this.#waits(promise));
    });
  }

  /** Uploads, and records a run, which is submitted at once. With `refuses` it throws where the run would take a row
   * that a table or cache has not. */
  #encode(inputs, options, refuses = true) {
    const device = this.#device, given = values(this.#program.inputs, inputs);
    if (refuses) this.#loaded.states.refuse(given);
    const encoder = device.createCommandEncoder();
    this.#shown = null;
    for (const port of this.#program.inputs) {
      const value = given.get(port.name), buffer = this.#loaded.buffers[port.buffer];
      if (isImage(value)) this.#shown = this.#image(port, buffer).read(encoder, value, options);
      else if (inWords(port)) device.queue.writeBuffer(buffer, 0, packed(port, value));
      else device.queue.writeBuffer(buffer, 0, elements(port, value));
    }
    dispatched(encoder.beginComputePass(), this.#loaded.steps);
    this.#loaded.states.follow(given);
    return encoder;
  }

  #image(port, buffer) {
    if (!this.#images.has(port.name)) this.#images.set(port.name, new Picture(this.#device, port, buffer, this.packed));
    return this.#images.get(port.name);
  }

  #open() {
    if (this.#lost !== null) throw gone(this.#lost);
    if (!this.#device) throw new Q8taError("closed", "this network was destroyed: load it again, or net.reopen()");
    return this.#device;
  }

  async #waits(promise) {
    const device = this.#device;
    let failure;
    try {
      await promise;
    } catch (error) {
      failure = error;
      // The promise of the loss may come after the failure it caused.
      await Promise.race([device.lost, new Promise((resolve) => setTimeout(resolve, 50))]);
    }
    if (this.#device !== device) throw new Q8taError("closed", "this network was destroyed while it ran", failure);
    if (this.#lost !== null) throw gone(this.#lost);
    if (failure) throw new Q8taError("device", failure.message, failure);
  }

  destroy() {
    this.#loaded?.destroy();
    for (const buffer of this.#staging) buffer.destroy();
    for (const image of this.#images.values()) image.destroy();
    for (const drawing of this.#canvases.values()) drawing.destroy();
    this.#staging = [];
    this.#loaded = this.#device = null;
    this.#images.clear();
    this.#canvases.clear();
  }
}
