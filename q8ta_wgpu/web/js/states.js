// What a network keeps from run to run, on the device.

import { ARRAYS, inWords, numel, packed, unpacked } from "./arrays.js";
import { Q8taError } from "./errors.js";
import { BUFFER, MAP_READ } from "./gpu.js";
import { counted, refuseBeyond } from "./row_indices.js";

export class States {
  #device;
  #buffers;
  #initial;
  #rowIndices;
  #held = new Map();

  /** `buffers` are the program's; `weights` hold what the states begin with. */
  constructor(device, program, buffers, weights) {
    this.ports = program.states ?? [];
    this.#rowIndices = program.row_indices;
    this.#device = device;
    this.#buffers = this.ports.map(({ buffer }) => buffers[buffer]);
    this.#initial = this.ports.map(({ initial: [offset, size] }) => weights.slice(offset, offset + size));
    this.reset();
  }

  reset() {
    this.#initial.forEach((words, i) => {
      this.#device.queue.writeBuffer(this.#buffers[i], 0, words);
      if (this.ports[i].dtype === "int32") this.#held.set(this.ports[i].name, new Int32Array(words.buffer));
    });
  }

  /** Throws where a run with these inputs would take a row that a table or cache has not. */
  refuse(given) {
    if (this.#rowIndices) refuseBeyond(this.#rowIndices, given, this.#held);
  }

  /** Follows a run with these inputs, so that what only counts need not be read. */
  follow(given) {
    if (this.#rowIndices) this.#held = counted(this.#rowIndices, given, this.#held);
  }

  /** Sets states by name, all or none of them. */
  write(values) {
    const known = this.ports.map(({ name }) => name), found = [];
    for (const [name, array] of Object.entries(values)) {
      const port = this.ports[known.indexOf(name)], kind = array?.constructor?.name ?? typeof array;
      if (!port) throw new Q8taError("input", `the network has no state ${name}; its states are: ${known.join(", ")}`);
      if (kind !== ARRAYS[port.dtype].name || array.length !== numel(port)) {
        const wanted = `a ${ARRAYS[port.dtype].name} of ${numel(port)} elements`;
        throw new Q8taError("input", `state ${name} must be ${wanted}, found ${kind} of ${array?.length}`);
      }
      found.push([port, array]);
    }
    for (const [port, array] of found) {
      const words = inWords(port) ? packed(port, array) : array;
      this.#device.queue.writeBuffer(this.#buffers[this.ports.indexOf(port)], 0, words);
      if (port.dtype === "int32") this.#held.set(port.name, array.slice());
    }
  }

  /** A typed array of every state by name, after all runs so far; `waits` awaits work of the device. */
  async read(waits) {
    const copies = this.#copied(BUFFER.MAP_READ | BUFFER.COPY_DST);
    try {
      for (const copy of copies) await waits(copy.mapAsync(MAP_READ));
      return Object.fromEntries(this.ports.map((port, i) => [port.name, unpacked(port, copies[i].getMappedRange())]));
    } finally {
      for (const copy of copies) copy.destroy();
    }
  }

  /** Gives states back what they were before `work`: runs that are measured are no calls. */
  async kept(work) {
    const copies = this.#copied(BUFFER.COPY_SRC | BUFFER.COPY_DST), held = new Map(this.#held);
    try {
      return await work();
    } finally {
      this.#held = held;
      this.#copy(copies, this.#buffers);
      for (const copy of copies) copy.destroy();
    }
  }

  #copied(usage) {
    const copies = this.ports.map(({ bytes }) => this.#device.createBuffer({ size: 4 * Math.ceil(bytes / 4), usage }));
    this.#copy(this.#buffers, copies);
    return copies;
  }

  #copy(sources, targets) {
    if (!sources.length) return;
    const encoder = this.#device.createCommandEncoder();
    this.ports.forEach(({ bytes }, i) => {
      encoder.copyBufferToBuffer(sources[i], 0, targets[i], 0, 4 * Math.ceil(bytes / 4));
    });
    this.#device.queue.submit([encoder.finish()]);
  }
}
