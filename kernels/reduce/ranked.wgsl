// The last index along params.axis whose rank equals the index of this result there; 0 if there is none.
alias Partial = u32;
fn merge(a: Partial, b: Partial) -> Partial { return max(a, b); }

fn partial_result(p: vec4<u32>, first: vec4<u32>) -> Partial {
  var at = p;
  var found = 0u;
  for (var i = first.w; i < params.rank_dims[params.axis]; i += STEPS.w) {
    at[params.axis] = i;
    if (rank_at(at) == i32(p[params.axis])) { found = i; }
  }
  return found;
}

fn finish(p: vec4<u32>, found: Partial) -> i32 { return i32(found); }
