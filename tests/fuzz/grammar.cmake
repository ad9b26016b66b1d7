di_fuzz(fuzz_constraint DEPS grammar)
