import with_null
