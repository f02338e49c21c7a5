// What a network keeps from run to run, on the device.

import { ARRAYS, inWords, numel, packed, unpacked } from "./arrays.js";
import { Q8taError } from "./errors.js";
import { BUFFER, MAP_READ } from "./gpu.js";

export class States {
  #device;
  #buffers;
  #initial;

  /** `buffers` are the program's; `weights` hold what the states begin with. */
  constructor(device, program, buffers, weights) {
    this.ports = program.states ?? [];
    this.#device = device;
    this.#buffers = this.ports.map(({ buffer }) => buffers[buffer]);
    this.#initial = this.ports.map(({ initial: [offset, size] }) => weights.slice(offset, offset + size));
    this.reset();
  }

  reset() {
    this.#initial.forEach((words, i) => this.#device.queue.writeBuffer(this.#buffers[i], 0, words));
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
      found.push([this.#buffers[known.indexOf(name)], inWords(port) ? packed(port, array) : array]);
    }
    for (const [buffer, words] of found) this.#device.queue.writeBuffer(buffer, 0, words);
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
    const copies = this.#copied(BUFFER.COPY_SRC | BUFFER.COPY_DST);
    try {
      return await work();
    } finally {
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
