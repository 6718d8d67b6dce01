// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/segment.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/shm/fast_box.h"
#include "opal/mca/common/gpusm/shm/lock_descriptors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpusm {

namespace {

// Growth goes in steps: large enough to be rare, small enough for many ranks on a node, and for the
// message that has to wait for one.
constexpr std::size_t commit_step_bytes = 32 * 1024;

// Where there is no memory callers ask for it in every call of progress. Each time the system takes
// the last pages that others may need, finds that they are too few, and gives them back.
constexpr std::chrono::milliseconds pause_after_refusal{10};

constexpr std::size_t round_up(std::size_t value, std::size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

// Where the sections of a segment with these counts begin.
struct layout {
    explicit constexpr layout(const segment_counts &of)
        : peers(fifo + round_up(of.fifo_slots * sizeof(fifo_slot), page_bytes)),
          events(peers + round_up(of.peer_slots * sizeof(peer_slot), page_bytes)),
          exports(events + round_up(of.event_slots * sizeof(event_slot), page_bytes)),
          frags(exports + round_up(of.export_slots * sizeof(export_slot), page_bytes))
    {
    }
    std::size_t fifo = page_bytes;
    std::size_t peers, events, exports, frags;
};

// `checked` is a private copy of the header's, so that nobody can change it after the check.
segment_view view_of(unsigned char *base, const segment_counts &checked)
{
    const layout at(checked);
    segment_view view{checked};
    view.header = reinterpret_cast<segment_header *>(base);
    view.frag_offset = static_cast<std::uint32_t>(at.frags);
    view.peers = reinterpret_cast<peer_slot *>(base + at.peers);
    view.events = reinterpret_cast<event_slot *>(base + at.events);
    view.exports = reinterpret_cast<export_slot *>(base + at.exports);
    view.fifo = {&view.header->fifo_tail, reinterpret_cast<fifo_slot *>(base + at.fifo),
                 checked.fifo_slots};
    return view;
}

// Memory behind a part of the file. Without it a full file system would answer the first
// touch with SIGBUS instead of an error. Returns an errno value, 0 for success.
int allocate_range(int fd, std::size_t offset, std::size_t len_bytes)
{
    // A call that a signal interrupts has got nothing, on some kernels, however far it was. A timer
    // that is faster than a long call would interrupt it for ever, so it becomes shorter.
    constexpr int most_in_a_row = 64;
    std::size_t from = offset / page_bytes * page_bytes;
    const std::size_t to = round_up(offset + len_bytes, page_bytes);
    std::size_t step = to - from;
    for (int interrupted = 0; from < to;) {
        step = std::min(step, to - from);
        const int error = posix_fallocate(fd, static_cast<off_t>(from), static_cast<off_t>(step));
        if (0 == error) {
            from += step;
            interrupted = 0;
        } else if (EINTR == error && ++interrupted < most_in_a_row) {
            step = round_up(step / 2, page_bytes);
        } else {
            return error;
        }
    }
    return 0;
}

// What is wrong with the counts, or with the length of a segment that has them; null: nothing.
const char *fault_of(const segment_counts &counts, std::uint64_t segment_bytes)
{
    if (!std::has_single_bit(counts.fifo_slots) || counts.fifo_slots > max_segment_bytes ||
        counts.peer_slots > max_peer_slots) {
        return "its FIFO or peer table has an impossible size";
    }
    return segment_bytes > max_segment_bytes || layout(counts).frags > segment_bytes
               ? "its length is wrong"
               : nullptr;
}

const char *first_fault(const segment_header &header, const segment_identity &identity,
                        std::size_t file_bytes)
{
    if (header.magic != segment_magic) {
        return "it is not a gpusm segment";
    }
    if (header.version != wire_version) {
        return "it was made by another version of gpusm";
    }
    if (!(header.identity == identity)) {
        return "it belongs to another process";
    }
    return header.segment_bytes > file_bytes ? "its length is wrong"
                                             : fault_of(header.counts, header.segment_bytes);
}

} // namespace

std::string segment_path(const std::string &directory, const segment_identity &identity)
{
    char name[96];
    std::snprintf(name, sizeof(name), "/gpusm.%u.%08" PRIx32 ".%" PRIu32 ".%016" PRIx64,
                  static_cast<unsigned>(geteuid()), identity.jobid, identity.vpid, identity.nonce);
    return directory + name;
}

file_mapping::~file_mapping()
{
    if (base_ != nullptr) {
        (void)munmap(base_, len_bytes_);
    }
    if (fd_ >= 0) {
        if (!path_.empty()) {
            (void)unlink(path_.c_str());
        }
        (void)close(fd_);
    }
}

bool file_mapping::map(std::size_t len_bytes)
{
    const int fd = path_.empty() ? fd_ : open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return false;
    }
    void *base = mmap(nullptr, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd != fd_) {
        (void)close(fd);
    }
    if (MAP_FAILED == base) {
        return false;
    }
    base_ = static_cast<unsigned char *>(base);
    len_bytes_ = len_bytes;
    return true;
}

status segment::create(const segment_options &options, segment *out, std::string *why)
{
    std::string path;
    const auto give_up = [&](const char *what, int error) {
        const bool no_memory = ENOSPC == error || ENOMEM == error || EINTR == error;
        const status answer = 0 == error  ? status::bad_argument
                              : no_memory ? status::no_memory
                                          : status::system_failed;
        *why = std::string("cannot ") + what + " the segment " + path + ": " +
               (0 == error ? to_string(answer) : std::strerror(error));
        return answer;
    };

    segment made;
    const layout at(options);
    const std::size_t first_bytes = at.frags + commit_step_bytes;
    const std::size_t bytes = round_up(options.segment_bytes, page_bytes);
    if (fault_of(options, options.segment_bytes) != nullptr || first_bytes > bytes) {
        return give_up("fit FIFO, peers, exports and fragments into", 0);
    }
    made.identity_ = {options.jobid, options.vpid, 0};
    if (getrandom(&made.identity_.nonce, sizeof(made.identity_.nonce), 0) !=
        static_cast<ssize_t>(sizeof(made.identity_.nonce))) {
        return give_up("name", errno);
    }
    made.directory_ = options.directory;
    path = segment_path(options.directory, made.identity_);
    made.mapping_ = file_mapping(
        open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR), path);
    const int fd = made.mapping_.fd();
    if (fd < 0) {
        return give_up("make", errno);
    }
    // In this order: segment_sweep() takes a file that has a length and no lock for a dead one.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return give_up("lock", errno);
    }
    keep_from_children(fd);
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        return give_up("size", errno);
    }
    // All up to the peers that are expected, the events, and room for the first fragments and a
    // fast box.
    const std::uint32_t peers = std::min(options.expected_peers, options.peer_slots);
    for (const auto &[from, to] :
         {std::pair{std::size_t{0}, at.peers + peers * sizeof(peer_slot)},
          std::pair{at.events, at.exports}, std::pair{at.frags, first_bytes}}) {
        if (const int error = allocate_range(fd, from, to - from); error != 0) {
            return give_up("put memory behind", error);
        }
    }
    if (!made.mapping_.map(bytes)) {
        return give_up("map", errno);
    }

    auto *header = new (made.base()) segment_header{};
    header->magic = segment_magic;
    header->version = wire_version;
    header->identity = made.identity_;
    header->segment_bytes = bytes;
    header->counts = options;
    made.committed_bytes_ = first_bytes;
    header->committed_bytes.store(first_bytes, std::memory_order_release);
    made.view_ = view_of(made.base(), options);
    made.next_frag_offset_ = at.frags;
    *out = std::move(made);
    return status::ok;
}

segment::~segment()
{
    forget_lock_descriptor(mapping_.fd());
    if (valid()) {
        // Not by the view, which is another segment's where two have been swapped.
        reinterpret_cast<segment_header *>(base())->use.store(use_of_mpi::ended,
                                                              std::memory_order_release);
    }
}

status segment::carve(std::size_t bytes, std::uint32_t *granule, std::size_t alignment)
{
    const std::lock_guard guard(*carving_);
    const std::size_t from = round_up(next_frag_offset_, alignment);
    const std::size_t to = from + round_up(bytes, granule_bytes);
    if (bytes > mapping_.len_bytes() || to > mapping_.len_bytes()) {
        return status::no_memory;
    }
    if (const std::size_t have = committed_bytes_; to > have) {
        const std::size_t want = std::min(round_up(to, commit_step_bytes), mapping_.len_bytes());
        const auto now = std::chrono::steady_clock::now();
        if (want >= refused_bytes_ && now < ask_again_) {
            return status::no_memory;
        }
        if (const int error = allocate_range(mapping_.fd(), have, want - have); error != 0) {
            refused_bytes_ = want;
            ask_again_ = now + pause_after_refusal;
            if (!std::exchange(told_that_it_is_full_, true)) {
                log_line(log_level::warn,
                         "cannot put more memory behind %s: %s; messages go on with what it has",
                         path().c_str(), std::strerror(error));
            }
            return status::no_memory;
        }
        committed_bytes_ = want;
        view_.header->committed_bytes.store(want, std::memory_order_release);
    }
    next_frag_offset_ = to;
    *granule = static_cast<std::uint32_t>(from / granule_bytes);
    return status::ok;
}

std::size_t segment::seal()
{
    const std::lock_guard guard(*carving_);
    next_frag_offset_ = std::min(in_system_pages(next_frag_offset_), mapping_.len_bytes());
    return next_frag_offset_;
}

bool segment::has_file() const
{
    return 0 == access(path().c_str(), F_OK);
}

status segment::commit_exports(std::uint32_t count)
{
    const std::lock_guard guard(*carving_);
    if (count <= exports_committed_) {
        return status::ok;
    }
    const auto offset = reinterpret_cast<unsigned char *>(view_.exports) - base();
    if (allocate_range(mapping_.fd(), static_cast<std::size_t>(offset),
                       count * sizeof(export_slot)) != 0) {
        return status::no_memory;
    }
    exports_committed_ = count;
    view_.header->exports_committed.store(count, std::memory_order_release);
    return status::ok;
}

status peer_segment::attach(const char *directory, const segment_identity &identity,
                            peer_segment *out)
{
    const std::string path = segment_path(directory, identity);
    file_mapping mapping(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat about {};
    segment_header checked{};
    const char *fault = "its length is wrong";
    if (mapping.fd() < 0 || fstat(mapping.fd(), &about) != 0) {
        if (ENOENT == errno) {
            return status::not_found;
        }
        if (EMFILE == errno || ENFILE == errno || ENOMEM == errno || EINTR == errno ||
            EAGAIN == errno) { // EAGAIN: somebody has a lease on the file
            return status::system_failed;
        }
        fault = std::strerror(errno);
    } else if (const auto file_bytes = static_cast<std::size_t>(about.st_size);
               file_bytes >= page_bytes && file_bytes <= max_segment_bytes) {
        if (!mapping.map(file_bytes)) {
            return status::system_failed;
        }
        std::memcpy(static_cast<void *>(&checked), mapping.base(), sizeof(checked));
        fault = first_fault(checked, identity, file_bytes);
    }
    if (fault != nullptr) {
        log_line(log_level::error, "cannot use the segment %s: %s", path.c_str(), fault);
        return status::bad_peer;
    }
    peer_segment attached;
    attached.mapping_ = std::move(mapping);
    attached.view_ = view_of(attached.base(), checked.counts);
    *out = std::move(attached);
    return status::ok;
}

bool mapped_segment::commit_peer(std::uint32_t slot) const
{
    const auto table = reinterpret_cast<unsigned char *>(view_.peers) - base();
    const std::size_t offset = static_cast<std::size_t>(table) + slot * sizeof(peer_slot);
    return slot < view_.peer_slots && 0 == allocate_range(mapping_.fd(), offset, sizeof(peer_slot));
}

status peer_segment::claim_peer_slot(const segment_identity &self, std::uint32_t *slot) const
{
    // Anybody may have stored something there, so it only says where to begin.
    std::atomic<std::uint32_t> &next = view_.header->peers_claimed;
    std::uint32_t index = next.load(std::memory_order_relaxed);
    for (std::uint32_t tries = 0; tries < view_.peer_slots; ++tries, ++index) {
        index = index < view_.peer_slots ? index : 0;
        // Before it is claimed, so that a full file system costs no slot.
        if (!commit_peer(index)) {
            return status::no_memory;
        }
        peer_slot &mine = view_.peers[index];
        std::uint32_t nobodys = 0;
        // Acquire pairs with node::forget, if it was somebody's before.
        if (mine.ready.compare_exchange_strong(nobodys, 2, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
            next.store(index + 1, std::memory_order_relaxed);
            mine.identity = self;
            mine.ready.store(1, std::memory_order_release); // pairs with node::new_sender
            *slot = index;
            return status::ok;
        }
    }
    return status::no_memory;
}

bool peer_segment::read_fragment(std::uint32_t granule, frag_header *copy,
                                 const unsigned char **payload) const
{
    const std::uint64_t offset = std::uint64_t{granule} * granule_bytes;
    if (!holds(offset, sizeof(*copy))) {
        return false;
    }
    std::memcpy(copy, at(granule), sizeof(*copy));
    *payload = at(granule) + sizeof(*copy);
    return holds(offset, sizeof(*copy) + copy->payload_bytes);
}

fast_box *peer_segment::fast_box_at(std::uint32_t slot) const
{
    // Acquire pairs with node::open_fast_box: it is ready, and has memory behind it.
    const std::uint32_t granule = view_.peers[slot].fast_box.load(std::memory_order_acquire);
    if (!holds(std::uint64_t{granule} * granule_bytes, sizeof(fast_box))) {
        return nullptr;
    }
    auto *box = reinterpret_cast<fast_box *>(at(granule));
    return box->unit[0].word.load(std::memory_order_relaxed) == fast_box_word::unused(slot)
               ? box
               : nullptr;
}

bool peer_segment::owner_alive() const
{
    // A lock of our own, on a description of our own, so that it never mixes with the owner's.
    if (flock(mapping_.fd(), LOCK_SH | LOCK_NB) != 0) {
        return true;
    }
    (void)flock(mapping_.fd(), LOCK_UN);
    return false;
}

} // namespace gpusm
