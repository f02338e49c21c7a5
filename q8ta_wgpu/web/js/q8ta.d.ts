/** Types of q8ta.js. They need no other types: where WebGPU's are known, devices and GPU objects have them. */

type Known<Name extends string> = typeof globalThis extends { [name in Name]: { prototype: infer T } } ? T : object;

/** What an input takes: a typed array of its elements, row-major, or, where its shape is (1, 1 or 3, h, w), an image of
 * w by h pixels, which stays on the GPU. A float32 input takes a Float64Array too, a bool input a Uint8Array of which 0
 * is false, an int32 input any array of integers. */
export type Value = ArrayBufferView | Image;
export type Image =
  | ImageBitmap
  | ImageData
  | HTMLImageElement
  | HTMLVideoElement
  | VideoFrame
  | HTMLCanvasElement
  | OffscreenCanvas;

/** Values by the inputs' names; the value alone where the network has one input. */
export type Inputs = Record<string, Value> | Value;

/** A typed array of every output, in the structure of the module's own outputs. */
export type Outputs = Float32Array | Int32Array | Int8Array | Uint8Array | Int16Array | null | Outputs[] | { [name: string]: Outputs };

export interface Port {
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: "float32" | "int32" | "int16" | "int8" | "uint8" | "bool";
  /** Of int8, int16 and uint8: real = scale * (stored - zero); a uint8 is stored as the int8 that is 128 less. */
  readonly scale?: number;
  readonly zero?: number;
  /** Of an int32 input: the smallest and the largest number that it takes. */
  readonly bounds?: readonly [number, number];
}

export interface Progress {
  readonly stage: "download" | "compile";
  /** Bytes, or shaders. */
  readonly done: number;
  readonly total: number;
}

export interface LoadOptions {
  /** The page's own device; without it, networks share one that is made here. */
  device?: Known<"GPUDevice">;
  /** Instead of navigator.gpu. */
  gpu?: Known<"GPU">;
  onprogress?: (progress: Progress) => void;
  /** Instead of the page's fetch. */
  fetch?: (url: string) => Promise<Response>;
  /** False leaves out the run that compares the device's bytes with the reference's. */
  verify?: boolean;
  /** False takes the emulated dot product, where the browser has the packed one. */
  packed?: boolean;
  /** The program for GPUs or for software; by default, what the adapter is. */
  kind?: "gpu" | "cpu";
}

export interface ImageOptions {
  /** Of an image: (byte / 255 - mean) / std, one number or one a channel. Defaults: 0 and 1. */
  mean?: number | readonly number[];
  std?: number | readonly number[];
}

export interface DrawOptions extends ImageOptions {
  /** Name of the output; the first by default. */
  output?: string;
  /** The values drawn as 0 and as full brightness. Default: [0, 1]. */
  range?: readonly [number, number];
  /** Whether a grey output takes the colours of the image that was given. Default: true. */
  colours?: boolean;
}

export interface Timing {
  /** Median milliseconds of GPU time of a run. */
  readonly ms: number;
  readonly runs: readonly number[];
  readonly dispatches: readonly { kernel: string; value: string; ms: number }[];
}

/** `code` says which: webgpu, adapter, limit, memory, device, shader, bytes (the device computes others than the
 * reference), download, damaged, version, input, timestamps, lost, closed. */
export class Q8taError extends Error {
  readonly code: string;
}

export class Network {
  private constructor();
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  /** What the network keeps from run to run, by the names of the module's buffers; none of most networks. */
  readonly states: readonly Port[];
  /** Bytes of program and weights. */
  readonly bytes: number;
  /** The adapter in words. */
  readonly adapter: string;
  /** Whether dot products are the browser's own. */
  readonly packed: boolean;
  run(inputs: Inputs, options?: ImageOptions): Promise<Outputs>;
  draw(inputs: Inputs, canvas: HTMLCanvasElement | OffscreenCanvas, options?: DrawOptions): Promise<void>;
  /** A copy of every state as it is stored, after the runs so far. */
  state(): Promise<Record<string, Float32Array | Int32Array | Int8Array | Int16Array>>;
  /** Sets states, as `state` gives them. Raises Q8taError where a name, dtype or size is wrong, and sets none then. */
  setState(values: Record<string, Float32Array | Int32Array | Int8Array | Int16Array>): void;
  /** Makes every state what the network began with. */
  reset(): void;
  /** Needs timestamp queries. */
  time(inputs: Inputs, options?: ImageOptions & { repeats?: number }): Promise<Timing>;
  /** Whether the device computes the reference's bytes; null where float operators may differ. */
  verify(): Promise<boolean | null>;
  /** Loads the network again, after its device was lost or it was destroyed. */
  reopen(device?: Known<"GPUDevice">): Promise<this>;
  /** Frees the GPU's memory; other networks on the device go on. */
  destroy(): void;
}

/** Loads the folder, or its net.json, that `q8.export_web` wrote. */
export function load(url: string | URL, options?: LoadOptions): Promise<Network>;
