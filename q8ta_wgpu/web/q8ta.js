// Runs what `model.export_web` wrote on the browser's WebGPU: const net = await load("./net/"); await net.run({ x }).
// q8ta.d.ts says what everything takes and gives.

const VERSION = 1;

/** What this module raises on purpose: `code` is a word for programs, `message` a sentence for people. */
export class Q8taError extends Error {
  constructor(code, message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "Q8taError";
    this.code = code;
  }
}

// --- files ---

function address(url) {
  const text = String(url);
  const file = /\.json([?#]|$)/.test(text) ? text : text.replace(/\/?([?#]|$)/, "/net.json$1");
  return new URL(file, globalThis.document?.baseURI ?? globalThis.location?.href).href;
}

async function download(url, get, advance = () => {}) {
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
function joined(arrays) {
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
const sha256 = async (data) => hex(await crypto.subtle.digest("SHA-256", data));

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

async function index(url, get) {
  const net = parsed(await download(url, get), url);
  if (net?.format !== "q8ta-web") throw new Q8taError("damaged", `${url} is no net.json of export_web`);
  if (net.version === VERSION) return net;
  throw new Q8taError("version", `${url} has version ${net.version}, this q8ta.js reads ${VERSION}: export it again`);
}

async function files({ program, weights }, url, get, report) {
  const total = program.bytes + weights.bytes;
  let done = 0;
  const advance = (bytes) => report({ stage: "download", done: (done += bytes), total });
  const data = await Promise.all([program, weights].map((file) => checked(file, url, get, advance)));
  return [parsed(data[0], url), data[1]];
}

// --- devices ---

/** WebGPU's baseline: what every device has. */
const BASELINE = {
  maxStorageBuffersPerShaderStage: 8,
  maxStorageBufferBindingSize: 2 ** 27,
  maxBufferSize: 2 ** 28,
  maxComputeInvocationsPerWorkgroup: 256,
  maxComputeWorkgroupSizeX: 256,
  maxComputeWorkgroupStorageSize: 16384,
  maxComputeWorkgroupsPerDimension: 65535,
};

function describe(info) {
  const parts = [info?.description || info?.device, info?.vendor, info?.architecture].filter(Boolean);
  return [...new Set(parts)].join(", ") || "this adapter";
}

function require(needed, limits, who) {
  for (const [name, value] of Object.entries(needed)) {
    if (limits[name] < value) {
      throw new Q8taError("limit", `the network needs ${name} ${value}, ${who} offers ${limits[name]}`);
    }
  }
}

/** The device made here, for all networks. */
const shared = new WeakMap();

function shares(gpu, adapter, needed) {
  const before = shared.get(gpu) ?? Promise.resolve(null);
  const next = before
    .catch(() => null)
    .then((device) => {
      const enough = device && Object.entries(needed).every(([name, value]) => device.limits[name] >= value);
      return enough ? device : request(gpu, adapter, needed);
    });
  shared.set(gpu, next);
  return next;
}

async function request(gpu, adapter, needed) {
  const requiredLimits = {};
  for (const name of Object.keys(BASELINE)) requiredLimits[name] = Math.max(BASELINE[name], needed[name]);
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) requiredLimits[name] = adapter.limits[name];
  const requiredFeatures = ["timestamp-query"].filter((feature) => adapter.features.has(feature));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  device.lost.then(() => shared.delete(gpu));
  return device;
}

async function best(gpu) {
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter) return adapter;
  throw new Q8taError("adapter", "WebGPU is there, but offers no adapter: the GPU or its driver is blocked or missing");
}

function webgpu(given) {
  const gpu = given ?? globalThis.navigator?.gpu;
  if (gpu) return gpu;
  throw globalThis.isSecureContext === false
    ? new Q8taError("webgpu", "WebGPU needs a secure page: open this one by https, or from localhost")
    : new Q8taError("webgpu", "this browser has no WebGPU: take a current Chrome, Edge, Firefox or Safari");
}

// --- shaders ---

/** WGSL's functions on four int8 in a word, for browsers that lack them. */
const EMULATED = {
  unpack4xI8: `fn unpack4xI8_(v: u32) -> vec4<i32> {
  return vec4<i32>(bitcast<vec4<i32>>(vec4<u32>(v) << vec4<u32>(24u, 16u, 8u, 0u))) >> vec4<u32>(24u);
}`,
  pack4xI8: `fn pack4xI8_(v: vec4<i32>) -> u32 {
  let b = bitcast<vec4<u32>>(v) & vec4<u32>(255u);
  return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}`,
  dot4I8Packed: `fn dot4I8Packed_(a: u32, b: u32) -> i32 {
  let v = unpack4xI8(a) * unpack4xI8(b);
  return v.x + v.y + v.z + v.w;
}`,
};

function emulated(text) {
  const names = Object.keys(EMULATED).join("|");
  const whole = `${text}\n${Object.values(EMULATED).join("\n")}`;
  return whole.replace(new RegExp(`\\b(${names})\\b`, "g"), "$1_");
}

// --- arrays ---

const ARRAYS = { float32: Float32Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, bool: Uint8Array };
const numel = (port) => port.shape.reduce((product, size) => product * size, 1);
const inWords = (port) => port.dtype !== "float32";

/** Calls `visit(element, place, flip)` for every element of a port in words, in the array's order; uint8 is stored as
 * int8, with a bit flipped. */
function eachPlace(port, visit) {
  const [n, c, h, w] = port.axes.map(({ size, block, near, far }) =>
    Uint32Array.from({ length: size }, (_, i) => Math.floor(i / block) * far + (i % block) * near),
  );
  const flip = port.dtype === "uint8" ? 128 : 0;
  let element = 0;
  for (const a of n) for (const b of c) for (const d of h) for (const e of w) visit(element++, a + b + d + e, flip);
}

function packed(port, array) {
  const stored = new ARRAYS[port.dtype](new ArrayBuffer(port.bytes));
  const bool = port.dtype === "bool"; // any byte but 0 is true
  eachPlace(port, (element, place, flip) => (stored[place] = (bool ? array[element] !== 0 : array[element]) ^ flip));
  return stored;
}

function unpacked(port, buffer) {
  if (!inWords(port)) return new Float32Array(buffer.slice(0, 4 * numel(port)));
  const stored = new ARRAYS[port.dtype](buffer), array = new ARRAYS[port.dtype](numel(port));
  eachPlace(port, (element, place, flip) => (array[element] = stored[place] ^ flip));
  return array;
}

function structured(tree, outputs) {
  if (tree === null) return null;
  if (typeof tree === "number") return outputs[tree];
  const [[kind, value]] = Object.entries(tree);
  if (kind !== "dict") return value.map((item) => structured(item, outputs));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, structured(item, outputs)]));
}

/** The made-up input whose outputs' hash the export holds; q8ta_wgpu/web/export.py makes the same. */
function sample(port) {
  const array = new ARRAYS[port.dtype](numel(port)), bits = port.dtype === "bool" ? 1 : 8 * array.BYTES_PER_ELEMENT;
  for (let i = 0; i < array.length; i++) {
    let h = Math.imul(i + 1, 0x9e3779b1);
    h = Math.imul(h ^ (h >>> 15), 0x85ebca77);
    h ^= h >>> 13;
    array[i] = inWords(port) ? h >>> (32 - bits) : ((h >>> 8) - (1 << 23)) / (1 << 22);
  }
  return array;
}

// --- images ---

function extent(image) {
  const width = image.videoWidth ?? image.displayWidth ?? image.naturalWidth ?? image.width;
  return [width, image.videoHeight ?? image.displayHeight ?? image.naturalHeight ?? image.height];
}

const isImage = (value) =>
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

// --- networks ---

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
  #buffers = [];
  #uniforms = null;
  #steps = [];
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
    const opened = device ?? (await shares(owner, adapter, found.limits));
    this.#device = opened;
    this.#program = program;
    this.#lost = null;
    opened.lost.then(({ message }) => this.#device === opened && (this.#lost = message || "no reason was given"));
    this.adapter = describe(info);
    const language = (gpu ?? globalThis.navigator?.gpu)?.wgslLanguageFeatures;
    this.packed = wanted && (language?.has("packed_4x8_integer_dot_product") ?? false);
    try {
      await this.#make(weights, onprogress);
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

  async #make(weights, report) {
    const device = this.#device, program = this.#program;
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    const upload = ([offset, size], flags) => {
      const buffer = device.createBuffer({ size, usage: flags | BUFFER.COPY_DST });
      device.queue.writeBuffer(buffer, 0, weights, offset, size);
      return buffer;
    };
    const flags = BUFFER.STORAGE | BUFFER.COPY_DST | BUFFER.COPY_SRC;
    this.#buffers = program.slots.map((size) => device.createBuffer({ size, usage: flags }));
    for (const place of program.constants) this.#buffers.push(upload(place, flags));
    this.#uniforms = upload(program.uniforms, BUFFER.UNIFORM);
    const memory = await device.popErrorScope(), invalid = await device.popErrorScope();
    if (memory ?? invalid) {
      const size = program.slots.reduce((a, b) => a + b, 0) + weights.length;
      const text = `${this.adapter} gives no ${(size / 2 ** 20).toFixed(1)} MiB`;
      throw new Q8taError(memory ? "memory" : "device", `${text}: ${(memory ?? invalid).message}`);
    }
    const layouts = new Map(), pipelines = new Map();
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
    const steps = program.dispatches.map(async ({ shader, buffers, uniform: [offset, size], grid }) => {
      const bound = [...buffers.map((i) => ({ buffer: this.#buffers[i] })), { buffer: this.#uniforms, offset, size }];
      const group = grouped(device, layouts.get(buffers.length), bound);
      return { pipeline: await pipelines.get(shader), group, grid };
    });
    this.#steps = await Promise.all(steps);
  }

  async #pipeline(text, bindings) {
    const device = this.#device, label = text.split("\n", 1)[0].replace("// ", "");
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

  async verify() {
    if (!this.#program?.sample) return null;
    const inputs = Object.fromEntries(this.#program.inputs.map((port) => [port.name, sample(port)]));
    return (await sha256(joined(await this.#results(inputs, {})))) === this.#program.sample;
  }

  /** Outputs in the structure of the module's own: typed arrays. */
  async run(inputs, options = {}) {
    const outputs = await this.#results(inputs, options);
    return structured(this.#program.structure, outputs);
  }

  async #results(inputs, options) {
    const device = this.#open(), ports = this.#program.outputs;
    const encoder = this.#encode(inputs, options);
    let size = 0;
    const places = ports.map(({ bytes }) => (size += aligned(bytes)) - aligned(bytes));
    const usage = BUFFER.MAP_READ | BUFFER.COPY_DST;
    const staging = this.#staging.pop() ?? device.createBuffer({ size, usage });
    try {
      ports.forEach(({ buffer, bytes }, i) => {
        encoder.copyBufferToBuffer(this.#buffers[buffer], 0, staging, places[i], bytes);
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
      const there = this.#described("outputs");
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
    const made = new Drawing(this.#device, port, canvas, this.#buffers[port.buffer]);
    this.#canvases.set(canvas, made);
    return made;
  }

  /** Milliseconds of GPU time: medians, of a whole run and of every dispatch. */
  async time(inputs, { repeats = 20, ...options } = {}) {
    const device = this.#open();
    if (!device.features.has("timestamp-query")) {
      throw new Q8taError("timestamps", `${this.adapter} or its device has no timestamp-query`);
    }
    const steps = this.#steps, most = 2048, runs = [], each = steps.map(() => []);
    device.queue.submit([this.#encode(inputs, options).finish()]);
    for (let i = -1; i < repeats; i++) {
      const whole = await this.#stamped([steps]);
      if (i >= 0) runs.push(whole[0]);
    }
    for (let i = 0; i < Math.min(repeats, 5); i++) {
      for (let first = 0; first < steps.length; first += most) {
        const part = await this.#stamped(steps.slice(first, first + most).map((step) => [step]));
        part.forEach((ms, k) => each[first + k].push(ms));
      }
    }
    const dispatches = this.#program.dispatches.map(({ kernel, value }, i) => ({ kernel, value, ms: median(each[i]) }));
    return { ms: median(runs), runs, dispatches };
  }

  /** Milliseconds of compute passes. */
  async #stamped(passes) {
    const device = this.#device, count = 2 * passes.length, usage = BUFFER;
    const querySet = device.createQuerySet({ type: "timestamp", count });
    const resolved = device.createBuffer({ size: 8 * count, usage: usage.QUERY_RESOLVE | usage.COPY_SRC });
    const staging = device.createBuffer({ size: 8 * count, usage: usage.MAP_READ | usage.COPY_DST });
    try {
      const encoder = device.createCommandEncoder();
      passes.forEach((steps, i) => {
        const timestampWrites = { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
        dispatched(encoder.beginComputePass({ timestampWrites }), steps);
      });
      encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, staging, 0, 8 * count);
      device.queue.submit([encoder.finish()]);
      await this.#waits(staging.mapAsync(MAP_READ));
      const ticks = new BigUint64Array(staging.getMappedRange());
      return passes.map((_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6);
    } finally {
      querySet.destroy();
      resolved.destroy();
      staging.destroy();
    }
  }

  /** Uploads, and records a run. */
  #encode(inputs, options) {
    const device = this.#device, given = this.#arguments(inputs);
    const encoder = device.createCommandEncoder();
    this.#shown = null;
    for (const port of this.#program.inputs) {
      const value = given.get(port.name), buffer = this.#buffers[port.buffer];
      if (isImage(value)) this.#shown = this.#image(port, buffer).read(encoder, value, options);
      else if (inWords(port)) device.queue.writeBuffer(buffer, 0, packed(port, value));
      else device.queue.writeBuffer(buffer, 0, value instanceof Float32Array ? value : Float32Array.from(value));
    }
    dispatched(encoder.beginComputePass(), this.#steps);
    return encoder;
  }

  #image(port, buffer) {
    if (!this.#images.has(port.name)) this.#images.set(port.name, new Picture(this.#device, port, buffer, this.packed));
    return this.#images.get(port.name);
  }

  /** A value for every input, checked. */
  #arguments(inputs) {
    const ports = this.#program.inputs, takes = `the network takes ${this.#described("inputs")}`;
    const fails = (text) => new Q8taError("input", text);
    const single = ports.length === 1 && (ArrayBuffer.isView(inputs) || isImage(inputs));
    const given = new Map(single ? [[ports[0].name, inputs]] : Object.entries(inputs ?? {}));
    const names = ports.map((port) => port.name);
    for (const name of given.keys()) {
      if (!names.includes(name)) throw fails(`the network has no input ${name}: ${takes}`);
    }
    for (const port of ports) {
      if (!given.has(port.name)) throw fails(`${takes}; missing: ${port.name}`);
      const problem = wrong(port, given.get(port.name));
      if (problem) throw fails(`input ${port.name} ${problem}`);
    }
    return given;
  }

  #described(kind) {
    return this.#program[kind].map((port) => `${port.name} ${port.dtype}[${port.shape.join(", ")}]`).join(", ");
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
    for (const buffer of [...this.#buffers, ...this.#staging]) buffer.destroy();
    this.#uniforms?.destroy();
    for (const image of this.#images.values()) image.destroy();
    for (const drawing of this.#canvases.values()) drawing.destroy();
    this.#buffers = [];
    this.#staging = [];
    this.#steps = [];
    this.#uniforms = this.#device = null;
    this.#images.clear();
    this.#canvases.clear();
  }
}

const gone = (why) => new Q8taError("lost", `the GPU device was lost (${why}): await net.reopen() loads it again`);
const aligned = (size) => Math.ceil(size / 16) * 16;
const shown = ({ name, shape, dtype, scale, zero }) => ({ name, shape, dtype, scale, zero });

function median(values) {
  const sorted = Float64Array.from(values).sort(), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function dispatched(pass, steps) {
  for (const { pipeline, group, grid } of steps) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
}

function grouped(device, layout, resources) {
  return device.createBindGroup({ layout, entries: resources.map((resource, binding) => ({ binding, resource })) });
}

function bindings(device, count) {
  const entries = [...Array(count - 1).fill("read-only-storage"), "storage", "uniform"].map((type, binding) => {
    return { binding, visibility: COMPUTE, buffer: { type } };
  });
  return device.createBindGroupLayout({ entries });
}

/** What is wrong with a value for an input, or an empty string. */
function wrong(port, value) {
  const shape = `(${port.shape.join(", ")})`;
  if (isImage(value)) {
    if (!port.read) return `takes no image: it is ${port.dtype} ${shape}, images fill (1, 1 or 3, h, w), no int16`;
    const [width, height] = extent(value), [, , h, w] = port.shape;
    if (width === w && height === h) return "";
    return `must be an image of ${w} x ${h} pixels, found ${width} x ${height}; createImageBitmap(image, ` +
      `{ resizeWidth: ${w}, resizeHeight: ${h}, resizeQuality: "high" }) makes one`;
  }
  const kind = value?.constructor?.name ?? typeof value, wanted = ARRAYS[port.dtype].name;
  const floats = port.dtype === "float32" && /^Float\d+Array$/.test(kind);
  const bytes = port.dtype === "uint8" && kind === "Uint8ClampedArray";
  if (kind !== wanted && !floats && !bytes) {
    const whole = port.dtype === "float32" && /Int|Clamped/.test(kind);
    const hint = whole ? ": convert it the way the model was trained" : "";
    return `must be a ${wanted} of shape ${shape}${port.read ? ", or an image" : ""}, found ${kind}${hint}`;
  }
  if (value.length === numel(port)) return "";
  const others = "model.reshape(...), exported, takes other sizes";
  return `must have ${numel(port)} elements, shape ${shape}, found ${value.length}; ${others}`;
}

/** Fills an input from pixels that stay on the GPU. */
class Picture {
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

/** Draws an output to a canvas. */
class Drawing {
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

// WebGPU's flags, which a page without WebGPU does not define.
const COMPUTE = 4;
const MAP_READ = 1;
const BUFFER = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128, QUERY_RESOLVE: 512 };
const TEXTURE = { COPY_DST: 2, TEXTURE_BINDING: 4, RENDER_ATTACHMENT: 16 };
