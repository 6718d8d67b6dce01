// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/segment.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpusm {

namespace {

// Growth goes in steps: large enough to be rare, small enough for many ranks on a node. Where there
// is much already they are an eighth of it.
constexpr std::size_t commit_step_bytes = 16 * 1024;
constexpr std::size_t long_step_bytes = 256 * 1024;

constexpr std::size_t round_up(std::size_t value, std::size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

// Where the sections of a segment with these counts lie; the owner lays it out so, a peer
// checks that the header says the same.
struct layout {
    std::size_t fifo, peers, events, exports, frags;
};

constexpr layout lay_out(std::uint32_t fifo_slots, std::uint32_t peer_slots,
                         std::uint32_t event_slots, std::uint32_t export_slots)
{
    layout at{};
    at.fifo = page_bytes;
    at.peers = at.fifo + round_up(fifo_slots * sizeof(fifo_slot), page_bytes);
    at.events = at.peers + round_up(peer_slots * sizeof(peer_slot), page_bytes);
    at.exports = at.events + round_up(event_slots * sizeof(event_slot), page_bytes);
    at.frags = at.exports + round_up(export_slots * sizeof(export_slot), page_bytes);
    return at;
}

// `checked` is a private copy of the header, so that nobody can change it after the check.
segment_view view_of(unsigned char *base, const segment_header &checked)
{
    segment_view view;
    view.header = reinterpret_cast<segment_header *>(base);
    view.peer_slots = checked.peer_slots;
    view.event_slots = checked.event_slots;
    view.export_slots = checked.export_slots;
    view.frag_offset = checked.frag_offset;
    view.fast_box_units = checked.fast_box_units;
    view.peers = reinterpret_cast<peer_slot *>(base + checked.peer_offset);
    view.events = reinterpret_cast<event_slot *>(base + checked.event_offset);
    view.exports = reinterpret_cast<export_slot *>(base + checked.export_offset);
    view.fifo = {&view.header->fifo_tail, reinterpret_cast<fifo_slot *>(base + checked.fifo_offset),
                 checked.fifo_slots};
    return view;
}

// Memory behind a part of the file. Without it a full file system would answer the first
// touch with SIGBUS instead of an error.
// Returns an errno value, 0 for success.
int allocate_range(int fd, std::size_t offset, std::size_t len_bytes)
{
    const std::size_t from = offset / page_bytes * page_bytes;
    const std::size_t to = round_up(offset + len_bytes, page_bytes);
    int error = 0;
    do {
        error = posix_fallocate(fd, static_cast<off_t>(from), static_cast<off_t>(to - from));
    } while (EINTR == error);
    return error;
}

constexpr bool sensible_fast_box(std::uint32_t lines)
{
    return std::has_single_bit(lines) && lines >= 8 && lines <= max_fast_box_units;
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
    if (header.segment_bytes > file_bytes || header.segment_bytes > max_segment_bytes) {
        return "its length is wrong";
    }
    if (!std::has_single_bit(header.fifo_slots) || header.fifo_slots > max_segment_bytes ||
        header.peer_slots > max_peer_slots) {
        return "its FIFO or peer table has an impossible size";
    }
    if (header.fast_box_units != 0 && !sensible_fast_box(header.fast_box_units)) {
        return "its fast boxes have an impossible size";
    }
    const layout at =
        lay_out(header.fifo_slots, header.peer_slots, header.event_slots, header.export_slots);
    if (at.fifo != header.fifo_offset || at.peers != header.peer_offset ||
        at.events != header.event_offset || at.exports != header.export_offset ||
        at.frags != header.frag_offset || at.frags > header.segment_bytes) {
        return "its sections are not where they should be";
    }
    return nullptr;
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
        (void)close(fd_);
    }
}

bool file_mapping::map(std::size_t len_bytes)
{
    void *base = mmap(nullptr, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (MAP_FAILED == base) {
        return false;
    }
    base_ = static_cast<unsigned char *>(base);
    len_bytes_ = len_bytes;
    return true;
}

segment &segment::operator=(segment &&other) noexcept
{
    if (this != &other) {
        remove();
        mapping_ = file_mapping();
        std::swap(mapping_, other.mapping_);
        view_ = std::exchange(other.view_, {});
        identity_ = other.identity_;
        directory_ = std::exchange(other.directory_, {});
        path_ = std::exchange(other.path_, {});
        next_frag_offset_ = other.next_frag_offset_;
    }
    return *this;
}

void segment::remove()
{
    if (valid()) {
        (void)unlink(path_.c_str());
    }
}

status segment::create(const segment_options &options, segment *out, std::string *why)
{
    std::string path;
    const auto give_up = [&](status answer, const char *what, int error) {
        const std::string cause = std::string("cannot ") + what + " the segment " + path + ": " +
                                  (0 == error ? to_string(answer) : std::strerror(error));
        if (why != nullptr) {
            *why = cause;
        } else {
            log_line(log_level::error, "%s", cause.c_str());
        }
        const bool full = ENOSPC == error || ENOMEM == error;
        return full ? status::no_memory : answer;
    };

    const layout at =
        lay_out(options.fifo_slots, options.peer_slots, options.event_slots, options.export_slots);
    const std::size_t bytes = round_up(options.segment_bytes, page_bytes);
    if ((options.fast_box_units != 0 && !sensible_fast_box(options.fast_box_units)) ||
        !std::has_single_bit(options.fifo_slots) || options.peer_slots > max_peer_slots ||
        bytes > max_segment_bytes || at.frags + commit_step_bytes > bytes) {
        return give_up(status::bad_argument, "fit FIFO, peers, exports and fragments into", 0);
    }
    segment_identity identity{options.jobid, options.vpid, 0};
    if (getrandom(&identity.nonce, sizeof(identity.nonce), 0) !=
        static_cast<ssize_t>(sizeof(identity.nonce))) {
        return give_up(status::system_failed, "name", errno);
    }
    path = segment_path(options.directory, identity);
    file_mapping mapping(
        open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (mapping.fd() < 0) {
        return give_up(status::system_failed, "make", errno);
    }
    const auto undo = [&](const char *what, int error) {
        (void)unlink(path.c_str());
        return give_up(status::system_failed, what, error);
    };
    if (flock(mapping.fd(), LOCK_EX | LOCK_NB) != 0) {
        return undo("lock", errno);
    }
    if (ftruncate(mapping.fd(), static_cast<off_t>(bytes)) != 0) {
        return undo("size", errno);
    }
    // All up to the peers, the events, and a first step of the fragments.
    const std::size_t first_bytes = at.frags + commit_step_bytes;
    for (const auto &[from, to] :
         {std::pair{std::size_t{0}, at.peers}, std::pair{at.events, at.exports},
          std::pair{at.frags, first_bytes}}) {
        if (const int error = allocate_range(mapping.fd(), from, to - from); error != 0) {
            return undo("put memory behind", error);
        }
    }
    if (!mapping.map(bytes)) {
        return undo("map", errno);
    }

    auto *header = new (mapping.base()) segment_header{};
    header->magic = segment_magic;
    header->version = wire_version;
    header->owner_pid = static_cast<std::uint32_t>(getpid());
    header->identity = identity;
    header->segment_bytes = bytes;
    header->fifo_offset = static_cast<std::uint32_t>(at.fifo);
    header->fifo_slots = options.fifo_slots;
    header->peer_offset = static_cast<std::uint32_t>(at.peers);
    header->peer_slots = options.peer_slots;
    header->event_offset = static_cast<std::uint32_t>(at.events);
    header->event_slots = options.event_slots;
    header->export_offset = static_cast<std::uint32_t>(at.exports);
    header->export_slots = options.export_slots;
    header->fast_box_units = options.fast_box_units;
    header->frag_offset = static_cast<std::uint32_t>(at.frags);
    header->committed_bytes.store(first_bytes, std::memory_order_release);

    segment made;
    made.mapping_ = std::move(mapping);
    made.view_ = view_of(made.mapping_.base(), *header);
    made.identity_ = identity;
    made.directory_ = options.directory;
    made.path_ = path;
    made.next_frag_offset_ = at.frags;
    *out = std::move(made);
    return status::ok;
}

status segment::carve(std::size_t bytes, std::uint32_t *granule)
{
    const std::lock_guard guard(*carving_);
    std::atomic<std::uint64_t> &committed = view_.header->committed_bytes;
    const std::size_t from = next_frag_offset_;
    if (bytes > mapping_.len_bytes() - from) {
        return status::no_memory;
    }
    const std::size_t to = from + round_up(bytes, granule_bytes);
    if (to > mapping_.len_bytes()) {
        return status::no_memory;
    }
    const std::size_t have = committed.load(std::memory_order_relaxed);
    if (to > have) {
        const std::size_t step =
            std::clamp(std::bit_floor(to / 8), commit_step_bytes, long_step_bytes);
        const std::size_t want = std::min(round_up(to, step), mapping_.len_bytes());
        if (const int error = allocate_range(mapping_.fd(), have, want - have); error != 0) {
            log_line(log_level::warn, "cannot put more memory behind %s: %s", path_.c_str(),
                     std::strerror(error));
            return status::no_memory;
        }
        committed.store(want, std::memory_order_release);
    }
    next_frag_offset_ = to;
    *granule = static_cast<std::uint32_t>(from / granule_bytes);
    return status::ok;
}

std::size_t segment::seal()
{
    const std::lock_guard guard(*carving_);
    const std::size_t sealed = round_up(next_frag_offset_, page_bytes);
    next_frag_offset_ = sealed < mapping_.len_bytes() ? sealed : mapping_.len_bytes();
    return next_frag_offset_;
}

status segment::commit_exports(std::uint32_t count)
{
    segment_header &header = *view_.header;
    if (count > view_.export_slots) {
        return status::bad_argument;
    }
    const std::uint32_t have = header.exports_committed.load(std::memory_order_relaxed);
    if (count <= have) {
        return status::ok;
    }
    if (allocate_range(mapping_.fd(), header.export_offset, count * sizeof(export_slot)) != 0) {
        return status::no_memory;
    }
    header.exports_committed.store(count, std::memory_order_release);
    return status::ok;
}

status peer_segment::attach(const char *directory, const segment_identity &identity,
                            peer_segment *out)
{
    const std::string path = segment_path(directory, identity);
    file_mapping mapping(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (mapping.fd() < 0) {
        return ENOENT == errno ? status::not_found : status::system_failed;
    }
    struct stat about;
    if (fstat(mapping.fd(), &about) != 0) {
        return status::system_failed;
    }
    const auto file_bytes = static_cast<std::size_t>(about.st_size);
    segment_header checked{};
    const char *fault = "its length is wrong";
    if (file_bytes >= page_bytes && file_bytes <= max_segment_bytes) {
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
    attached.view_ = view_of(attached.mapping_.base(), checked);
    *out = std::move(attached);
    return status::ok;
}

status peer_segment::claim_peer_slot(const segment_identity &self, std::uint32_t *slot) const
{
    segment_header &header = *view_.header;
    const std::uint32_t index = header.peers_claimed.fetch_add(1, std::memory_order_relaxed);
    if (index >= view_.peer_slots) {
        // Back, so that the counter cannot wrap however often somebody tries.
        (void)header.peers_claimed.fetch_sub(1, std::memory_order_relaxed);
        return status::no_memory;
    }
    peer_slot &mine = view_.peers[index];
    const auto offset = reinterpret_cast<unsigned char *>(&mine) - mapping_.base();
    if (allocate_range(mapping_.fd(), static_cast<std::size_t>(offset), sizeof(mine)) != 0) {
        return status::no_memory;
    }
    mine.identity = self;
    mine.pid = static_cast<std::uint32_t>(getpid());
    mine.ready.store(1, std::memory_order_release); // pairs with node::sender_at
    *slot = index;
    return status::ok;
}

bool peer_segment::read_fragment(std::uint32_t granule, frag_header *copy,
                                 const unsigned char **payload) const
{
    const std::size_t offset = static_cast<std::size_t>(granule) * granule_bytes;
    // Only what has memory behind it: touching more could be a SIGBUS.
    const std::size_t committed = view_.header->committed_bytes.load(std::memory_order_acquire);
    const std::size_t limit = committed < mapping_.len_bytes() ? committed : mapping_.len_bytes();
    if (offset < view_.frag_offset || offset + sizeof(frag_header) > limit) {
        return false;
    }
    const unsigned char *at = mapping_.base() + offset;
    std::memcpy(copy, at, sizeof(*copy));
    *payload = at + sizeof(*copy);
    return copy->payload_bytes <= limit - offset - sizeof(*copy) &&
           (0 == copy->lead_bytes ||
            lead_offset(copy->payload_bytes) + copy->lead_bytes <= limit - offset);
}

bool peer_segment::holds(std::uint64_t offset, std::uint64_t bytes) const
{
    const std::uint64_t committed = view_.header->committed_bytes.load(std::memory_order_acquire);
    const std::uint64_t limit = committed < mapping_.len_bytes() ? committed : mapping_.len_bytes();
    return offset >= view_.frag_offset && offset <= limit && bytes <= limit - offset;
}

fast_box_unit *peer_segment::fast_box_at(std::uint32_t slot) const
{
    // Acquire pairs with node::open_fast_box: it is ready, and has memory behind it.
    const std::size_t offset =
        std::size_t{view_.peers[slot].fast_box.load(std::memory_order_acquire)} * granule_bytes;
    const std::size_t bytes = std::size_t{view_.fast_box_units} * sizeof(fast_box_unit);
    return 0 == bytes || !holds(offset, bytes)
               ? nullptr
               : reinterpret_cast<fast_box_unit *>(mapping_.base() + offset);
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

int segment_sweep(const std::string &directory)
{
    char prefix[32];
    std::snprintf(prefix, sizeof(prefix), "gpusm.%u.", static_cast<unsigned>(geteuid()));
    DIR *entries = opendir(directory.c_str());
    if (nullptr == entries) {
        return 0;
    }
    int removed = 0;
    while (const dirent *entry = readdir(entries)) {
        if (std::strncmp(entry->d_name, prefix, std::strlen(prefix)) != 0) {
            continue;
        }
        const std::string path = directory + "/" + entry->d_name;
        if (path.ends_with(companion_suffix)) { // a living process has its segment file
            const auto of = path.substr(0, path.size() - std::strlen(companion_suffix));
            removed += 0 != access(of.c_str(), F_OK) && 0 == unlink(path.c_str()) ? 1 : 0;
            continue;
        }
        const file_mapping file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        struct stat about;
        // A file without a length is one that its owner is about to lock.
        if (file.fd() >= 0 && 0 == fstat(file.fd(), &about) && about.st_size > 0 &&
            0 == flock(file.fd(), LOCK_EX | LOCK_NB)) {
            removed += 0 == unlink(path.c_str()) ? 1 : 0; // and at the next look its companion
        }
    }
    (void)closedir(entries);
    return removed;
}

} // namespace gpusm
