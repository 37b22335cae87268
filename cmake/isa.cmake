# Instruction-set flags by file name: kernels for one instruction set live in `*_avx2.cpp`,
# `*_avx512.cpp` (AVX-512 F/BW/VL/DQ + VNNI) or `*_neon.cpp`, and only those files are compiled
# with its flags. Such a file may not define anything with external weak linkage (no std templates,
# no inline functions from headers): the linker could keep that copy for the whole program and
# an older processor would meet an illegal instruction. tests/style checks the object files.
function(strata_isa_flags folder)
    file(GLOB avx2 CONFIGURE_DEPENDS ${folder}/*_avx2.cpp)
    file(GLOB avx512 CONFIGURE_DEPENDS ${folder}/*_avx512.cpp)
    file(GLOB neon CONFIGURE_DEPENDS ${folder}/*_neon.cpp)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
        set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
        set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS
            "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mprefer-vector-width=512")
        set_source_files_properties(${neon} PROPERTIES HEADER_FILE_ONLY ON)
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
        set_source_files_properties(${neon} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod+fp16")
        set_source_files_properties(${avx2} ${avx512} PROPERTIES HEADER_FILE_ONLY ON)
    else()
        set_source_files_properties(${avx2} ${avx512} ${neon} PROPERTIES HEADER_FILE_ONLY ON)
    endif()
endfunction()
