// Version and build of the engine, as HELLO and --version give it.
#pragma once

#include <string>

namespace strata {

// "0.1.0 (gcc 12.2.0)": release and compiler. Two builds of one release by one compiler are told
// apart by the supervisor, which looks at the file.
std::string build_id();

}  // namespace strata
