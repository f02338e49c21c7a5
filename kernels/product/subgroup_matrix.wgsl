// What a module on int8 matrix units begins with, and the matrices that a unit multiplies. Linked: UNIT_M, UNIT_N,
// UNIT_K.

diagnostic(off, chromium.subgroup_matrix_uniformity); // subgroup indices are computed, and uniform in each subgroup
enable subgroups;
enable chromium_experimental_subgroup_matrix;

alias Left = subgroup_matrix_left<i8, UNIT_K, UNIT_M>;
alias Right = subgroup_matrix_right<i8, UNIT_N, UNIT_K>;
alias Sums = subgroup_matrix_result<i32, UNIT_N, UNIT_M>;
