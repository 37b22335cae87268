// The command line of an engine program: one schema for parsing and --help.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/loop/foreign_backend.h"
#include "engine/plan/mode.h"

namespace strata {

struct Options {
    bool help = false;
    bool version = false;
    bool describe = false;
    bool describe_all = false;
    std::string ipc;         // "COMMAND_FD,EVENT_FD[,BEACON_FD]"
    std::string plan;        // model file to plan for
    std::string ple;         // of that model, as OFFER has it
    std::string as_backend;  // empty: this program's own; else plan and describe for that one
    AssumedFacts assumed;    // of its device
    std::string isa = "auto";
    std::vector<std::string> without_kernels;
    bool fixed_drafts = false;
    WantedModes want;  // for --plan; serving takes it from OFFER
};

// Throws Error{InvalidRequest, "config.flag"} with one sentence that names the flag and what it
// takes.
Options parse_options(const std::vector<std::string>& arguments);

// What --help prints.
std::string help_text(const std::string& program);

}  // namespace strata
