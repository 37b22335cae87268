#include "engine/base/modules.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <string>

#if defined(__linux__)
#include <elf.h>
#include <link.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <mach-o/dyld.h>
#include <mach-o/loader.h>
#endif

namespace strata {

namespace {

void add(BeaconPage& page, uint64_t begin, uint64_t end, const std::string& path) {
    if (page.module_count == kBeaconModulesMax) return;
    BeaconModule& module = page.modules[page.module_count++];
    module.begin = begin;
    module.end = end;
    const std::string name = path.substr(path.rfind('/') + 1);
    name.copy(module.name, sizeof(module.name) - 1);
}

#if defined(__linux__)

// GNU build id of a note segment as hex, or nothing.
void read_build_id(const char* notes, size_t bytes, BeaconPage& page) {
    const auto padded = [](size_t count) { return (count + 3) / 4 * 4; };
    for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
        ElfW(Nhdr) note;
        std::memcpy(&note, notes + at, sizeof(note));
        const char* name = notes + at + sizeof(note);
        at += sizeof(note) + padded(note.n_namesz) + padded(note.n_descsz);
        if (at > bytes) return;
        if (note.n_type != NT_GNU_BUILD_ID || std::strncmp(name, "GNU", 4) != 0) continue;
        const char* id = name + padded(note.n_namesz);
        const size_t count = std::min<size_t>(note.n_descsz, (sizeof(page.build_id) - 1) / 2);
        for (size_t i = 0; i < count; ++i) {
            const auto byte = static_cast<unsigned char>(id[i]);
            page.build_id[2 * i] = "0123456789abcdef"[byte >> 4];
            page.build_id[2 * i + 1] = "0123456789abcdef"[byte & 15];
        }
        return;
    }
}

int on_module(dl_phdr_info* info, size_t, void* argument) {
    BeaconPage& page = *static_cast<BeaconPage*>(argument);
    const bool is_executable = page.module_count == 0;
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = info->dlpi_phdr[i];
        const uint64_t address = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD) {
            begin = std::min(begin, address);
            end = std::max(end, address + segment.p_memsz);
        } else if (segment.p_type == PT_NOTE && is_executable && page.build_id[0] == '\0') {
            read_build_id(reinterpret_cast<const char*>(address), segment.p_memsz, page);
        }
    }
    char path[PATH_MAX] = {};
    if (is_executable && readlink("/proc/self/exe", path, sizeof(path) - 1) < 0) return 0;
    add(page, begin, end, is_executable ? path : info->dlpi_name);
    return 0;
}

#endif

}  // namespace

void list_modules(BeaconPage& page) {
    page.module_count = 0;
#if defined(__linux__)
    dl_iterate_phdr(on_module, &page);
#elif defined(__APPLE__)
    for (uint32_t i = 0; i < _dyld_image_count(); ++i) {
        const auto* header = reinterpret_cast<const mach_header_64*>(_dyld_get_image_header(i));
        uint64_t text_bytes = 0;
        const char* command = reinterpret_cast<const char*>(header + 1);
        for (uint32_t c = 0; c < header->ncmds; ++c) {
            const auto* segment = reinterpret_cast<const segment_command_64*>(command);
            if (segment->cmd == LC_SEGMENT_64 && std::strcmp(segment->segname, "__TEXT") == 0) {
                text_bytes = segment->vmsize;
            }
            command += segment->cmdsize;
        }
        const auto begin = reinterpret_cast<uint64_t>(header);
        add(page, begin, begin + text_bytes, _dyld_get_image_name(i));
    }
#endif
}

}  // namespace strata
