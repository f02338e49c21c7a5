// Outputs on a canvas.

import { Q8taError } from "./errors.js";
import { BUFFER, TEXTURE, grouped } from "./gpu.js";

/** Draws an output to a canvas. */
export class Drawing {
  constructor(device, port, canvas, buffer) {
    this.device = device;
    this.port = port;
    const format = globalThis.navigator?.gpu?.getPreferredCanvasFormat() ?? "rgba8unorm";
    this.canvas = canvas;
    this.context = canvas.getContext("webgpu");
    if (!this.context) throw new Q8taError("input", "the canvas has a context of another kind than webgpu");
    this.context.configure({ device, format, alphaMode: "opaque" });
    const module = device.createShaderModule({ code: port.draw });
    const fragment = { module, entryPoint: "shown", targets: [{ format }] };
    this.pipeline = device.createRenderPipeline({ layout: "auto", vertex: { module, entryPoint: "corner" }, fragment });
    this.uniform = device.createBuffer({ size: 16, usage: BUFFER.UNIFORM | BUFFER.COPY_DST });
    this.nothing = device.createTexture({ size: [1, 1], format: "rgba8unorm", usage: TEXTURE.TEXTURE_BINDING });
    this.sampler = device.createSampler({ magFilter: "linear", minFilter: "linear" });
    this.buffer = { buffer, size: port.bytes };
  }

  draw(encoder, picture, { range: [low, high] = [0, 1], colours = true }) {
    const words = new DataView(new ArrayBuffer(16)), [, , height, width] = this.port.shape;
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    words.setFloat32(0, low, true);
    words.setFloat32(4, 1 / (high - low), true);
    words.setUint32(8, colours && picture && this.port.shape[1] === 1 ? 1 : 0, true);
    this.device.queue.writeBuffer(this.uniform, 0, words.buffer);
    const view = (picture ?? this.nothing).createView();
    const resources = [this.buffer, { buffer: this.uniform }, view, this.sampler];
    const target = this.context.getCurrentTexture().createView();
    const pass = encoder.beginRenderPass({ colorAttachments: [{ view: target, loadOp: "clear", storeOp: "store" }] });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, grouped(this.device, this.pipeline.getBindGroupLayout(0), resources));
    pass.draw(3);
    pass.end();
  }

  destroy() {
    this.uniform.destroy();
    this.nothing.destroy();
    this.context.unconfigure();
  }
}
