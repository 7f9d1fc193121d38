// The one function that Rust calls to run a kernel.
#include "launch.hpp"

#include <new>

extern "C" void simt_launch(const simt::Request* request, simt::Report* report) {
    report->outcome = int32_t(simt::Outcome::done);
    report->text[0] = 0;
    try {
        simt::install_fault_handler();
        simt::Launch(*request, *report).run();
    } catch (const std::bad_alloc&) {
        report->outcome = int32_t(simt::Outcome::no_memory);
        std::snprintf(report->text, sizeof report->text, "no memory for the grid's threads");
    }
}
