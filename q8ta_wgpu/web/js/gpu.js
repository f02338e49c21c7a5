// Short forms of WebGPU's calls.

// WebGPU's flags, which a page without WebGPU does not define.
export const COMPUTE = 4;
export const MAP_READ = 1;
export const BUFFER = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128, QUERY_RESOLVE: 512 };
export const TEXTURE = { COPY_DST: 2, TEXTURE_BINDING: 4, RENDER_ATTACHMENT: 16 };

export function dispatched(pass, steps) {
  for (const { pipeline, group, grid } of steps) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
}

export function grouped(device, layout, resources) {
  return device.createBindGroup({ layout, entries: resources.map((resource, binding) => ({ binding, resource })) });
}

export function bindings(device, count) {
  const entries = [...Array(count - 1).fill("read-only-storage"), "storage", "uniform"].map((type, binding) => {
    return { binding, visibility: COMPUTE, buffer: { type } };
  });
  return device.createBindGroupLayout({ entries });
}
