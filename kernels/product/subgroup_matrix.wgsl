// What a module on int8 matrix units begins with, and the matrices that a unit multiplies. Linked: UNIT_M, UNIT_N,
// UNIT_K.

diagnostic(off, chromium.subgroup_matrix_uniformity); // subgroup indices are computed, and uniform in each subgroup
enable subgroups;
enable chromium_experimental_subgroup_matrix;

alias Left = subgroup_matrix_left<i8, UNIT_K, UNIT_M>;
alias Right = subgroup_matrix_right<i8, UNIT_N, UNIT_K>;
alias Sums = subgroup_matrix_result<i32, UNIT_N, UNIT_M>;

// Of a product whose tile is SUBGROUPS_M x SUBGROUPS_N subgroups, and of each FRAGMENTS_M x FRAGMENTS_N matrices. A step
// along k has STEP vectors of 16 int8, for PRODUCTS products of matrices; a row of it in workgroup memory has one more
// vector, so that rows do not use the same memory banks.
const THREADS = LANES * SUBGROUPS_M * SUBGROUPS_N;
const TILE_M = UNIT_M * FRAGMENTS_M * SUBGROUPS_M;
const UNIT_VECTORS = UNIT_K / 16u;
const PRODUCTS = STEP / UNIT_VECTORS;
const ROW = STEP + 1u;
