// A fault on a fiber ends its launch, not the process.
//
// The handler keeps what happened and continues on the launching thread's own stack, as if the fiber had switched there.
#include "launch.hpp"

#include <csignal>
#include <mutex>
#include <ucontext.h>

namespace simt {
namespace {

constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[NSIG];

void handle(int signal, siginfo_t* information, void* context) {
    if (thread != nullptr) {
        launch->fault = {true, signal, reinterpret_cast<uintptr_t>(information->si_addr)};
        greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
        registers[REG_RSP] = reinterpret_cast<greg_t>(launch->scheduler_stack_pointer);
        registers[REG_RIP] = reinterpret_cast<greg_t>(simt_restore);
        thread = nullptr;
        return;
    }
    const struct sigaction& before = previous[signal];
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(signal, information, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(signal);
    else sigaction(signal, &before, nullptr); // the instruction faults again, without us
}

} // namespace

void install_fault_handler() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action{};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (const int signal : signals) sigaction(signal, &action, &previous[signal]);
    });
}

} // namespace simt
