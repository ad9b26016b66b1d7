di_fuzz(fuzz_http DEPS server_http)
