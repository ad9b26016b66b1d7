file(GLOB pictures CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/data/pictures/*.png ${PROJECT_SOURCE_DIR}/tests/data/pictures/*.jpg
     ${PROJECT_SOURCE_DIR}/tests/data/pictures/*.gif ${PROJECT_SOURCE_DIR}/tests/data/pictures/*.webp)
di_fuzz(fuzz_image DEPS vision SEEDS ${pictures})
