# cmake -DROOT=TREE -DWITH=TEXT -DOUT=FILE.c -P build-id.cmake: the identity of a build, from what it is made of.
#
# Ranks of one run must be one program. The linker's build id will not do: it differs with the directory that was built in.
# This one is a hash of the sources and of WITH (compiler, flags), so the same sources built on two machines are one build.
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/src/*.c ${ROOT}/src/*.h ${ROOT}/include/*.h)
list(SORT sources)
set(all "${WITH}\n")
foreach(source IN LISTS sources)
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND all "${hash} ${source}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING ${id} 0 16 id)
file(WRITE ${OUT} "#include \"base/base.h\"\n\nconst char *im_build_id(void)\n{\n    return \"${id}\";\n}\n")
