// Images sampled at computed coordinates: the nearest element, or the bilinear interpolation of four. Elements outside
// of the image are 0, or coordinates are clamped to the border or mirrored there.
fn compute(p: vec4<u32>) -> f32 {
  let x = position_of(grid_at(vec4<u32>(p.x, p.zw, 0u)), params.factor_w, params.x_dims.w);
  let y = position_of(grid_at(vec4<u32>(p.x, p.zw, 1u)), params.factor_h, params.x_dims.z);
  if (params.nearest == 1u) { return tap(p, round(y), round(x), 1.0); }
  let left = floor(x);
  let top = floor(y);
  let across = x - left;
  let down = y - top;
  return tap(p, top, left, (1.0 - down) * (1.0 - across)) + tap(p, top, left + 1.0, (1.0 - down) * across)
    + tap(p, top + 1.0, left, down * (1.0 - across)) + tap(p, top + 1.0, left + 1.0, down * across);
}

const ZEROS = 0u;
const REFLECTION = 2u;

// The position of a coordinate in -1..1 along a dimension, in elements. NaN counts as -1. Positions far outside are
// clamped to two elements outside, which no element of the image reaches.
fn position_of(coordinate: f32, factor: f32, extent: u32) -> f32 {
  let from_border = (select(clamp(coordinate, -1e30, 1e30), -1.0, is_nan(coordinate)) + 1.0) * factor;
  let at = select(from_border, mirrored(abs(from_border), 2.0 * factor), params.padding == REFLECTION) + params.offset;
  let reach = select(2.0, 0.0, params.padding != ZEROS);
  return clamp(at, -reach, f32(extent - 1u) + reach);
}

// A distance from a border, mirrored at both borders, which are `span` apart, until it lies between them.
fn mirrored(distance: f32, span: f32) -> f32 {
  if (span == 0.0) { return 0.0; }
  let turns = floor(distance / span);
  let rest = distance - turns * span;
  return select(rest, span - rest, turns - 2.0 * floor(turns * 0.5) == 1.0);
}

fn tap(p: vec4<u32>, y: f32, x: f32, weight: f32) -> f32 {
  let last = vec2<f32>(params.x_dims.zw - 1u);
  let at = clamp(vec2<f32>(y, x), vec2<f32>(), last);
  let value = x_at(vec4<u32>(p.xy, vec2<u32>(at)));
  return select(0.0, value * weight, all(at == vec2<f32>(y, x)));
}
