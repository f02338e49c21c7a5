fn multiplier_of(w: Window) -> f32 { return params.multiplier; }
