// Images as inputs.

import { inWords } from "./arrays.js";
import { BUFFER, TEXTURE, dispatched, grouped } from "./gpu.js";
import { emulated } from "./shaders.js";

export function extent(image) {
  const width = image.videoWidth ?? image.displayWidth ?? image.naturalWidth ?? image.width;
  return [width, image.videoHeight ?? image.displayHeight ?? image.naturalHeight ?? image.height];
}

export const isImage = (value) =>
  Object(value) === value && !ArrayBuffer.isView(value) && ("width" in value || "displayWidth" in value);

/** What each byte of each channel becomes: (byte / 255 - mean) / std in single precision, or the int8 of it. */
function table(port, { mean = 0, std = 1 } = {}) {
  const f = Math.fround, channels = port.shape[1];
  const of = (given, c) => f(Array.isArray(given) ? given[c] : given);
  const found = new (inWords(port) ? Int32Array : Float32Array)(256 * channels);
  for (let i = 0; i < found.length; i++) {
    const c = i >> 8, byte = i & 255;
    const real = f(f(f(byte / 255) - of(mean, c)) / of(std, c));
    if (port.dtype === "float32") found[i] = real;
    else if (port.dtype === "uint8") found[i] = byte - 128;
    else found[i] = Math.min(127, Math.max(-128, evenly(f(real * f(1 / port.scale))) + port.zero));
  }
  return found;
}

/** Rounds half to even. */
function evenly(v) {
  const down = Math.floor(v), rest = v - down;
  return rest < 0.5 || (rest === 0.5 && down % 2 === 0) ? down : down + 1;
}

/** Fills an input from pixels that stay on the GPU. */
export class Picture {
  constructor(device, port, buffer, packed) {
    this.device = device;
    this.port = port;
    const [, , height, width] = port.shape;
    const usage = TEXTURE.TEXTURE_BINDING | TEXTURE.COPY_DST | TEXTURE.RENDER_ATTACHMENT;
    this.texture = device.createTexture({ size: [width, height], format: "rgba8unorm", usage });
    this.table = device.createBuffer({ size: 1024 * port.shape[1], usage: BUFFER.STORAGE | BUFFER.COPY_DST });
    const module = device.createShaderModule({ code: packed ? port.read : emulated(port.read) });
    this.pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
    const resources = [this.texture.createView(), { buffer: this.table }, { buffer, size: port.bytes }];
    this.group = grouped(device, this.pipeline.getBindGroupLayout(0), resources);
    const groups = Math.ceil(port.bytes / 4 / 64);
    this.grid = [Math.min(groups, 65535), Math.ceil(groups / 65535)];
  }

  read(encoder, source, options) {
    const { queue } = this.device, [, , height, width] = this.port.shape;
    queue.writeBuffer(this.table, 0, table(this.port, options));
    queue.copyExternalImageToTexture({ source }, { texture: this.texture, premultipliedAlpha: true }, [width, height]);
    dispatched(encoder.beginComputePass(), [this]);
    return this.texture;
  }

  destroy() {
    this.texture.destroy();
    this.table.destroy();
  }
}
