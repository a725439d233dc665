import bad_syntax
