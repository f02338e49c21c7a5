// A program on a device: buffers, pipelines and what to dispatch.

import { Q8taError } from "./errors.js";
import { BUFFER, bindings, grouped } from "./gpu.js";
import { emulated } from "./shaders.js";
import { States } from "./states.js";

export class Loaded {
  buffers = [];
  steps = [];
  #uniforms = null;

  /** `adapter` names the device in errors; `packed` says whether the browser has packed dot products. */
  constructor(device, program, adapter, packed) {
    Object.assign(this, { device, program, adapter, packed });
  }

  async make(weights, report) {
    const uploaded = this.#upload(weights); // while pipelines compile
    const { device, program } = this, layouts = new Map(), pipelines = new Map();
    let done = 0;
    const total = program.shaders.length;
    for (const { shader, buffers } of program.dispatches) {
      const count = buffers.length;
      if (!layouts.has(count)) layouts.set(count, bindings(device, count));
      if (!pipelines.has(shader)) {
        const made = this.#pipeline(program.shaders[shader], layouts.get(count));
        pipelines.set(shader, made.finally(() => report({ stage: "compile", done: ++done, total })));
      }
    }
    const steps = program.dispatches.map(async ({ shader, buffers, offsets, uniform: [offset, size], grid }) => {
      const parts = buffers.map((place, i) => ({ buffer: this.buffers[place], offset: offsets?.[i] ?? 0 }));
      const bound = [...parts, { buffer: this.#uniforms, offset, size }];
      const group = grouped(device, layouts.get(buffers.length), bound);
      return { pipeline: await pipelines.get(shader), group, grid };
    });
    [, ...this.steps] = await Promise.all([uploaded, ...steps]);
  }

  async #upload(weights) {
    const { device, program } = this;
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    const upload = ([offset, size], flags) => {
      const buffer = device.createBuffer({ size, usage: flags | BUFFER.COPY_DST });
      device.queue.writeBuffer(buffer, 0, weights, offset, size);
      return buffer;
    };
    const flags = BUFFER.STORAGE | BUFFER.COPY_DST | BUFFER.COPY_SRC;
    this.buffers = program.slots.map((size) => device.createBuffer({ size, usage: flags }));
    for (const place of program.constants) this.buffers.push(upload(place, flags));
    this.#uniforms = upload(program.uniforms, BUFFER.UNIFORM);
    this.states = new States(device, program, this.buffers, weights);
    const [memory, invalid] = await Promise.all([device.popErrorScope(), device.popErrorScope()]);
    if (memory ?? invalid) {
      const size = program.slots.reduce((a, b) => a + b, 0) + weights.length;
      const text = `${this.adapter} gives no ${(size / 2 ** 20).toFixed(1)} MiB`;
      throw new Q8taError(memory ? "memory" : "device", `${text}: ${(memory ?? invalid).message}`);
    }
  }

  async #pipeline(text, bindings) {
    const { device } = this, label = text.split("\n", 1)[0].replace("// ", "");
    const module = device.createShaderModule({ label, code: this.packed ? text : emulated(text) });
    const layout = device.createPipelineLayout({ bindGroupLayouts: [bindings] });
    try {
      return await device.createComputePipelineAsync({ label, layout, compute: { module, entryPoint: "main" } });
    } catch (error) {
      const { messages } = await module.getCompilationInfo();
      const words = messages.map((message) => message.message).join("; ") || error.message;
      throw new Q8taError("shader", `${this.adapter} could not compile ${label}: ${words}`, error);
    }
  }

  destroy() {
    for (const buffer of this.buffers) buffer.destroy();
    this.#uniforms?.destroy();
  }
}
