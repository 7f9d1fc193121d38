// What a failed launch says.
#include "launch.hpp"

#include <csignal>
#include <cstdlib>

namespace simt {
namespace {

constexpr unsigned lines_of_report = 24;

std::string triple(const uint3& index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

// "3", "0-15", "0-3, 8, 10-31".
std::string ranges(unsigned lanes) {
    std::string text;
    for (unsigned lane = 0; lane < lanes_of_warp; ++lane) {
        if (!(lanes >> lane & 1)) continue;
        unsigned last = lane;
        while (last + 1 < lanes_of_warp && lanes >> (last + 1) & 1) ++last;
        if (!text.empty()) text += ", ";
        text += std::to_string(lane);
        if (last > lane) text += "-" + std::to_string(last);
        lane = last;
    }
    return text;
}

std::string place_of(const Fiber& fiber, const Block& block) {
    switch (fiber.state) {
    case State::ready:
    case State::running: return fiber.stack == nullptr ? "not started" : "can run";
    case State::polling: return "polling memory";
    case State::exited: return "exited";
    case State::at_grid_barrier: return "at the grid barrier";
    case State::at_barrier: {
        const Barrier& barrier = block.barriers[fiber.barrier];
        const std::string expected = std::to_string(barrier.threads == 0 ? block.live : barrier.threads);
        const std::string name =
            fiber.barrier == 0 && barrier.threads == 0 ? "__syncthreads" : "barrier " + std::to_string(fiber.barrier);
        return "at " + name + " (" + std::to_string(barrier.arrived) + " of " + expected + " threads arrived)";
    }
    case State::at_gathering: {
        const Gathering& gathering = *fiber.gathering;
        return "at " + name_of(gathering.shape) + " (missing lanes " + ranges(gathering.mask & ~gathering.arrived) +
               ")";
    }
    }
    return "";
}

}  // namespace

std::string name_of(unsigned shape) {
    switch (Collective(shape & 0xff)) {
    case Collective::sync_warp: return "__syncwarp";
    case Collective::shuffle: return "__shfl_sync";
    case Collective::shuffle_xor: return "__shfl_xor_sync";
    case Collective::shuffle_up: return "__shfl_up_sync";
    case Collective::shuffle_down: return "__shfl_down_sync";
    case Collective::ballot: return "__ballot_sync";
    case Collective::any: return "__any_sync";
    case Collective::all: return "__all_sync";
    case Collective::reduce_add: return "__reduce_add_sync";
    case Collective::reduce_min: return "__reduce_min_sync";
    case Collective::reduce_max: return "__reduce_max_sync";
    case Collective::reduce_and: return "__reduce_and_sync";
    case Collective::reduce_or: return "__reduce_or_sync";
    case Collective::reduce_xor: return "__reduce_xor_sync";
    case Collective::match_any: return "__match_any_sync";
    case Collective::exchange: return "warp_exchange";
    case Collective::compute: return "warp_compute";
    case Collective::matrix_multiply: return "mma.sync";
    }
    return "";
}

std::string describe_thread(const Fiber& fiber) {
    return "block " + triple(fiber.view->block_index) + " thread " + std::to_string(fiber.index);
}

std::string describe_waiting(const Launch& launch) {
    std::string text;
    unsigned lines = 0, left_out = 0;
    for (const Block& block : launch.blocks) {
        if (block.live == 0) continue;
        for (unsigned first = 0; first < launch.threads_of_block; first += lanes_of_warp) {
            const unsigned end = std::min(first + lanes_of_warp, launch.threads_of_block);
            std::vector<std::pair<std::string, unsigned>> places;
            for (unsigned t = first; t < end; ++t) {
                const std::string place = place_of(block.fibers[t], block);
                size_t i = 0;
                while (i < places.size() && places[i].first != place) ++i;
                if (i == places.size()) places.push_back({place, 0});
                places[i].second |= 1u << (t - first);
            }
            if (places.size() == 1 && places[0].first == "exited") continue;
            if (lines == lines_of_report) {
                ++left_out;
                continue;
            }
            ++lines;
            text += "block " + triple(block.view.block_index) + " warp " + std::to_string(first / lanes_of_warp) + ": ";
            for (size_t i = 0; i < places.size(); ++i)
                text += (i == 0 ? "lanes " : "; lanes ") + ranges(places[i].second) + " " + places[i].first;
            text += "\n";
        }
    }
    if (left_out > 0) text += "and " + std::to_string(left_out) + " more warps\n";
    return text;
}

std::string describe_fault(const Launch& launch, const Fiber& fiber) {
    const Launch::Fault& fault = launch.fault;
    std::string text = describe_thread(fiber);
    if (fault.signal == SIGFPE) return text + " divided an integer by zero, or its quotient overflowed";
    if (fault.signal == SIGILL) return text + " ran an instruction that this machine lacks";
    const auto offset = intptr_t(fault.address) - intptr_t(fiber.view->shared);
    char address[64];
    std::snprintf(address, sizeof address, " touched address 0x%zx", size_t(fault.address));
    text += address;
    if (offset >= intptr_t(launch.request.shared_bytes) && offset < intptr_t(launch.request.shared_bytes) + 4096)
        text += ", offset " + std::to_string(offset) + " of the " + std::to_string(launch.request.shared_bytes) +
                " bytes of shared memory";
    return text;
}

void Launch::fail(Outcome outcome, const std::string& text) {
    if (report.outcome != int32_t(Outcome::done)) return;
    report.outcome = int32_t(outcome);
    std::snprintf(report.text, sizeof report.text, "%s", text.c_str());
}

void misuse(const char* what) { misuse(std::string(what)); }

void misuse(const std::string& what) {
    launch->fail(Outcome::misuse, describe_thread(*launch->current) + ": " + what);
    launch->leave_failed();
}

void lane_not_in_mask(const Gathering& gathering, unsigned lane) {
    misuse(name_of(gathering.shape) + " read lane " + std::to_string(lane) + ", which its mask doesn't name");
}

void trap(const char* what) {
    launch->fail(Outcome::trap, describe_thread(*launch->current) + ": " + what);
    launch->leave_failed();
}

void assertion_failed(const char* condition, const char* file, int line) {
    trap((std::string(file) + ":" + std::to_string(line) + ": assertion failed: " + condition).c_str());
}

}  // namespace simt
