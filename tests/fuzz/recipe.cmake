di_fuzz(fuzz_recipe_line DEPS recipe)
