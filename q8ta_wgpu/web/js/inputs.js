// What a caller gives, checked.

import { ARRAYS, numel } from "./arrays.js";
import { Q8taError } from "./errors.js";
import { extent, isImage } from "./picture.js";

/** Inputs or outputs of a program in words. */
export function described(ports) {
  return ports.map((port) => `${port.name} ${port.dtype}[${port.shape.join(", ")}]`).join(", ");
}

/** A value for every input, by its name. */
export function values(ports, inputs) {
  const takes = `the network takes ${described(ports)}`;
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
  const integers = port.dtype === "int32" && /^(Big|Int|Uint).*Array$/.test(kind);
  const bytes = port.dtype === "uint8" && kind === "Uint8ClampedArray";
  if (kind !== wanted && !floats && !bytes && !integers) {
    const whole = port.dtype === "float32" && /Int|Clamped/.test(kind);
    const hint = whole ? ": convert it the way the model was trained" : "";
    return `must be a ${wanted} of shape ${shape}${port.read ? ", or an image" : ""}, found ${kind}${hint}`;
  }
  if (value.length !== numel(port)) {
    const others = "model.reshape(...), exported, takes other sizes";
    return `must have ${numel(port)} elements, shape ${shape}, found ${value.length}; ${others}`;
  }
  const [low, high] = port.bounds ?? [];
  const beyond = port.bounds && value.find((number) => number < low || number > high);
  return beyond === undefined ? "" : `holds ${beyond}, and must be in [${low}, ${high}]`;
}
