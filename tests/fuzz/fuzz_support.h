// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_support.h: what the fuzz targets share: an input as numbers, processes that are played, and
// mappings that nothing lies beside. run_fuzz.sh builds and runs them; one input: fuzz_fifo FILE.
#ifndef GPUSM_TESTS_FUZZ_SUPPORT_H
#define GPUSM_TESTS_FUZZ_SUPPORT_H

#include "tests/unit/shm_support.h"

#include <fstream>
#include <optional>
#include <set>

#include <sys/mman.h>

extern const std::vector<std::string> seeds; // inputs to start from

namespace gpusm_test {

// What an input says, in the order in which it is asked; zeros behind its end.
struct fuzz_input {
    template <typename Value> Value next()
    {
        Value value{};
        const std::size_t some = std::min(sizeof(value), left);
        std::memcpy(static_cast<void *>(&value), at, some);
        at += some;
        left -= some;
        return value;
    }
    std::uint32_t below(std::uint32_t bound) { return next<std::uint8_t>() % bound; }
    bool one_of(std::uint32_t many) { return 0 == below(many); }
    // What somebody may have stored over a word, and over some words of a value.
    std::uint64_t word(std::uint64_t old)
    {
        const auto way = below(4);
        const auto near = static_cast<std::uint64_t>(next<std::int8_t>());
        return 0 == way   ? next<std::uint64_t>()
               : 1 == way ? old + near
               : 2 == way ? old ^ 1ULL << near % 64
                          : near;
    }
    template <typename Value> Value spoilt(Value value)
    {
        std::uint32_t words[sizeof(value) / 4];
        std::memcpy(words, &value, sizeof(words));
        for (std::uint32_t changes = below(4); changes > 0; --changes) {
            std::uint32_t &each = words[below(std::size(words))];
            each = static_cast<std::uint32_t>(word(each));
        }
        std::memcpy(static_cast<void *>(&value), words, sizeof(words));
        return value;
    }

    const std::uint8_t *at;
    std::size_t left;
};

template <typename... Value> std::string bytes_of(const Value &...values)
{
    std::string all;
    (all.append(reinterpret_cast<const char *>(&values), sizeof(values)), ...);
    return all;
}

inline void require(bool promise, const char *what)
{
    if (!promise) {
        std::fprintf(stderr, "broken promise: %s\n", what);
        std::abort();
    }
}

// A process that an input plays. Its node is made anew for each, as a peer is closed for good, and
// so are the mappings of others. Its own segment, which costs more, is kept and set back to what it
// was; now and then it is made anew, too, as what is carved is carved for good.
class player {
  public:
    explicit player(std::uint32_t vpid) : vpid_(vpid) {}

    void begin(std::uint32_t fast_box_max = 0)
    {
        if (0 == begun_++ % 64) {
            gpusm::segment_options options = small_options(folder(), vpid_);
            options.segment_bytes = segment_bytes;
            options.fifo_slots = 16;
            own_ = gpusm::segment();
            own_ = make_segment(options);
            own_.view().header->committed_bytes = options.segment_bytes; // whatever is set back
            as_made_.assign(own_.base(), own_.base() + own_.view().frag_offset);
        }
        std::memcpy(own_.base(), as_made_.data(), as_made_.size());
        node_.emplace(std::move(own_), fast_box_max);
    }
    void end()
    {
        own_ = std::move(node_->own());
        node_.reset();
        sent_.clear();
        arrived.clear();
    }

    gpusm::segment &own() { return node_->own(); }
    gpusm::node &its() { return *node_; }
    gpusm::peer &towards(player &to) { return *node_->add_peer(to.own().identity(), folder()); }
    gpusm::outgoing &send(player &to, const std::string &payload,
                          gpusm::frag_kind kind = gpusm::frag_kind::active_message)
    {
        gpusm::outgoing &made = sent_.emplace_back(make_fragment(own(), payload));
        made.header->kind = kind;
        (void)towards(to).post(&made);
        return made;
    }
    // What a handler gets must lie in the sender's segment, or in a fast box of this one.
    void check(gpusm::peer &from, const gpusm::frag_header &header, const unsigned char *payload)
    {
        const auto in_own = static_cast<std::size_t>(payload - own().base());
        const auto in_theirs = static_cast<std::size_t>(payload - from.shared().base());
        require(in_own < segment_bytes ? header.payload_bytes <= gpusm::fast_box_most_bytes
                                       : in_theirs + header.payload_bytes <= segment_bytes,
                "a message that does not lie in a segment");
    }
    void poll(int limit = 100)
    {
        (void)node_->poll(limit, [this](auto &from, auto &header, auto *payload) {
            check(from, header, payload);
            arrived += broken == from.identity().vpid ? "" : payload_of(header, payload) + " ";
        });
    }
    std::string arrived; // but for what the broken one has sent
    static constexpr std::uint32_t broken = 2;
    static constexpr std::size_t segment_bytes = 16U << 20;

    static const std::string &folder()
    {
        static const scratch_folder all;
        return all.path();
    }

  private:
    const std::uint32_t vpid_;
    unsigned begun_ = 0;
    gpusm::segment own_;
    std::vector<unsigned char> as_made_;
    std::optional<gpusm::node> node_;
    std::deque<gpusm::outgoing> sent_;
};

inline std::set<void *> guarded;

} // namespace gpusm_test

// Linked with --wrap: before and behind what processes share lies a page that nobody may touch.
extern "C" void *__real_mmap(void *, std::size_t, int, int, int, off_t);
extern "C" int __real_munmap(void *, std::size_t);
extern "C" void *__wrap_mmap(void *at, std::size_t bytes, int may, int flags, int fd, off_t offset)
{
    if (fd >= 0 && 0 != (flags & MAP_SHARED)) {
        at = static_cast<char *>(__real_mmap(nullptr, bytes + 2 * gpusm::page_bytes, PROT_NONE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) +
             gpusm::page_bytes;
        gpusm_test::guarded.insert(at);
        flags |= MAP_FIXED;
    }
    return __real_mmap(at, bytes, may, flags, fd, offset);
}
extern "C" int __wrap_munmap(void *at, std::size_t bytes)
{
    const std::size_t guard = gpusm_test::guarded.erase(at) * gpusm::page_bytes;
    return __real_munmap(static_cast<char *>(at) - guard, bytes + 2 * guard);
}

// TARGET --write-seeds FOLDER
extern "C" int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    if (3 == *count && std::string("--write-seeds") == (*arguments)[1]) {
        for (std::size_t i = 0; i < seeds.size(); ++i) {
            std::ofstream((*arguments)[2] + ("/seed-" + std::to_string(i))) << seeds[i];
        }
        std::exit(0);
    }
    gpusm::log_install([](gpusm::log_level, const char *) {}, gpusm::log_level::debug);
    return 0;
}

#endif
