// Typed arrays, and where their elements lie on the device.

export const ARRAYS = {
  float32: Float32Array, int32: Int32Array, int16: Int16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};
export const numel = (port) => port.shape.reduce((product, size) => product * size, 1);
export const inWords = (port) => port.dtype !== "float32" && port.dtype !== "int32";

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

/** A value as the elements of an input that is not in words. */
export function elements(port, value) {
  const Wanted = ARRAYS[port.dtype];
  return value instanceof Wanted ? value : Wanted.from(value, Number);
}

export function packed(port, array) {
  const stored = new ARRAYS[port.dtype](new ArrayBuffer(port.bytes));
  const bool = port.dtype === "bool"; // any byte but 0 is true
  eachPlace(port, (element, place, flip) => (stored[place] = (bool ? array[element] !== 0 : array[element]) ^ flip));
  return stored;
}

export function unpacked(port, buffer) {
  if (!inWords(port)) return new ARRAYS[port.dtype](buffer.slice(0, 4 * numel(port)));
  const stored = new ARRAYS[port.dtype](buffer), array = new ARRAYS[port.dtype](numel(port));
  eachPlace(port, (element, place, flip) => (array[element] = stored[place] ^ flip));
  return array;
}

export function structured(tree, outputs) {
  if (tree === null) return null;
  if (typeof tree === "number") return outputs[tree];
  const [[kind, value]] = Object.entries(tree);
  if (kind !== "dict") return value.map((item) => structured(item, outputs));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, structured(item, outputs)]));
}

/** The made-up inputs whose outputs' hash the export holds; q8ta_wgpu/web/web_folder.py makes the same. */
export const samples = (ports) => Object.fromEntries(ports.map((port, i) => [port.name, sample(port, i << 24)]));

function sample(port, first) {
  const array = new ARRAYS[port.dtype](numel(port)), bits = port.dtype === "bool" ? 1 : 8 * array.BYTES_PER_ELEMENT;
  for (let i = 0; i < array.length; i++) {
    let h = Math.imul(first + i + 1, 0x9e3779b1);
    h = Math.imul(h ^ (h >>> 15), 0x85ebca77);
    h ^= h >>> 13;
    if (port.bounds) array[i] = port.bounds[0] + ((h >>> 8) % (port.bounds[1] - port.bounds[0] + 1));
    else if (bits === 16) array[i] = h >> Math.min(16 + (h & 31), 31); // of every magnitude
    else array[i] = inWords(port) ? h >>> (32 - bits) : ((h >>> 8) - (1 << 23)) / (1 << 22);
  }
  return array;
}
