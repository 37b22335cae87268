#include "engine/loop/build_id.h"

#ifndef STRATA_VERSION
#error "the build defines STRATA_VERSION"
#endif

namespace strata {

std::string build_id() {
#if defined(__clang__)
    return STRATA_VERSION " (clang " __clang_version__ ")";
#else
    return STRATA_VERSION " (gcc " __VERSION__ ")";
#endif
}

}  // namespace strata
