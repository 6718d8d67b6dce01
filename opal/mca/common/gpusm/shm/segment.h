// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/segment.h: the file and the mapping behind a segment.
//
//   segment        the owner's: makes the file, puts memory behind it as it is needed
//   peer_segment   somebody else's, mapped and checked
//   segment_sweep  removes files of owners that died without removing them
//
// The owner holds a lock (flock) on its file as long as it lives, however it ends, and its children
// do not. That is how others tell a live owner from a dead one, across PID namespaces and without
// signals.
#ifndef GPUSM_SHM_SEGMENT_H
#define GPUSM_SHM_SEGMENT_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/fifo.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace gpusm {

struct segment_options : segment_counts {
    const char *directory = "/dev/shm";
    std::uint32_t jobid = 0;
    std::uint32_t vpid = 0;
    std::uint64_t segment_bytes = 0;  // upper bound of its growth
    std::uint32_t expected_peers = 0; // so many peer slots have memory from the start
};

// A file descriptor and a shared mapping of its file; both are given back at the end. A file with a
// path is the maker's: its name is removed, too, and others keep what they have mapped.
class file_mapping {
  public:
    file_mapping() = default;
    explicit file_mapping(int fd, std::string path = {}) : fd_(fd), path_(std::move(path)) {}
    file_mapping(file_mapping &&other) noexcept { *this = std::move(other); }
    file_mapping &operator=(file_mapping &&other) noexcept
    {
        std::swap(fd_, other.fd_);
        std::swap(path_, other.path_);
        std::swap(base_, other.base_);
        std::swap(len_bytes_, other.len_bytes_);
        return *this;
    }
    ~file_mapping();

    // Maps the first `len_bytes` of the file for reading and writing; false: errno says why. A file
    // with a path is opened once more for that, as the mapping would hold the lock of what it maps.
    bool map(std::size_t len_bytes);

    int fd() const { return fd_; }
    const std::string &path() const { return path_; }
    unsigned char *base() const { return base_; }
    std::size_t len_bytes() const { return len_bytes_; }

  private:
    int fd_ = -1;
    std::string path_;
    unsigned char *base_ = nullptr;
    std::size_t len_bytes_ = 0;
};

// Where the sections of a mapped segment are: pointers into the mapping, and the counts as they
// were when the header was checked. Later changes of the header by its owner change nothing.
struct segment_view : segment_counts {
    segment_header *header = nullptr;
    std::uint32_t frag_offset = 0; // first byte that a fragment may occupy
    peer_slot *peers = nullptr;
    event_slot *events = nullptr;
    export_slot *exports = nullptr;
    fifo_view fifo;
};

// What the owner and its peers have of a segment.
class mapped_segment {
  public:
    bool valid() const { return mapping_.base() != nullptr; }
    std::size_t len_bytes() const { return mapping_.len_bytes(); }
    const segment_view &view() const { return view_; }
    unsigned char *base() const { return mapping_.base(); }
    unsigned char *at(std::uint32_t granule) const
    {
        return base() + static_cast<std::size_t>(granule) * granule_bytes;
    }
    // Puts memory behind that peer slot. False: there is none now, or no such slot.
    bool commit_peer(std::uint32_t slot) const;

  protected:
    file_mapping mapping_;
    segment_view view_;
};

class segment : public mapped_segment {
  public:
    segment() = default;
    segment(segment &&) noexcept = default;
    segment &operator=(segment &&) noexcept = default;
    // Tells those who have it mapped that its owner has ended in order.
    ~segment();

    // Makes the file with memory behind the header, the FIFO, the slots of the expected peers, the
    // event slots and the first fragments. When it fails, nothing is left behind and *why has the
    // cause. `no_memory`: the file system is full; `system_failed`: anything else the system said;
    // `bad_argument`: sizes that do not fit each other.
    static status create(const segment_options &options, segment *out, std::string *why);

    // Gives `bytes` of fresh zeroed shared memory at a granule, a multiple of `alignment`, for
    // good. `no_memory` when the segment has reached its bound or the file system is full, which is
    // logged once; nothing is taken then, and for some milliseconds as much is not asked for again.
    // Any thread.
    status carve(std::size_t bytes, std::uint32_t *granule, std::size_t alignment = granule_bytes);

    // Where the next fragment would start, after moving that up to a page of the system: no
    // fragment lies across the returned offset. For whoever treats the parts before and after it
    // differently.
    std::size_t seal();

    // For all to see; the end is told by the destructor.
    void tell(use_of_mpi use) { view_.header->use.store(use, std::memory_order_release); }

    // Puts memory behind the first `count` export slots. Any thread.
    status commit_exports(std::uint32_t count);

    const segment_identity &identity() const { return identity_; }
    const std::string &directory() const { return directory_; }
    const std::string &path() const { return mapping_.path(); }
    // Others can map it. Not any more when somebody has removed the file.
    bool has_file() const;

  private:
    // Kept here as well: peers can write over the header.
    segment_identity identity_{};
    std::uint64_t committed_bytes_ = 0;
    std::uint32_t exports_committed_ = 0;
    std::string directory_;
    std::unique_ptr<std::mutex> carving_ = std::make_unique<std::mutex>();
    std::size_t next_frag_offset_ = 0;
    bool told_that_it_is_full_ = false;
    std::size_t refused_bytes_ = 0; // so much of the file could not be had the last time
    std::chrono::steady_clock::time_point ask_again_{};
};

class peer_segment : public mapped_segment {
  public:
    // Maps the segment of `identity` in `directory` and checks all that its header says.
    // `not_found`: no such file here (another mount of the directory, or the owner is gone);
    // `bad_peer`: a file, but not one that we can use, cause logged; `system_failed`: no memory or
    // no file descriptor is left, which may pass.
    static status attach(const char *directory, const segment_identity &identity,
                         peer_segment *out);

    // Takes a peer slot in that segment for `self` and describes it there. `no_memory`: all
    // slots are taken, or no memory can be put behind one now.
    status claim_peer_slot(const segment_identity &self, std::uint32_t *slot) const;

    // Copies the header of the fragment at `granule`, as the owner can write to it at any time, and
    // finds its payload, which lies inside the owner's fragment section if the copy is believed.
    // False when that header cannot be right.
    bool read_fragment(std::uint32_t granule, frag_header *copy,
                       const unsigned char **payload) const;

    // True when [offset, offset + bytes) lies among the fragments and has memory behind it:
    // touching more could be a SIGBUS.
    bool holds(std::uint64_t offset, std::uint64_t bytes) const
    {
        const auto lies_before = [&](std::uint64_t limit) {
            return offset >= view_.frag_offset && offset <= limit && bytes <= limit - offset;
        };
        // It only grows, so what has been seen once is believed, whatever is stored there later.
        const std::atomic_ref seen(committed_seen_);
        std::uint64_t limit = seen.load(std::memory_order_relaxed);
        if (lies_before(limit)) [[likely]] {
            return true;
        }
        limit = std::min<std::uint64_t>(
            view_.header->committed_bytes.load(std::memory_order_acquire), mapping_.len_bytes());
        seen.store(limit, std::memory_order_relaxed);
        return lies_before(limit);
    }

    // The fast box that the owner has given to the peer behind that slot; null: none, or nonsense.
    fast_box *fast_box_at(std::uint32_t slot) const;

    // False once the owner's process has ended, in whatever way.
    bool owner_alive() const;
    // What the owner has said last.
    use_of_mpi owner_says() const { return view_.header->use.load(std::memory_order_acquire); }

  private:
    alignas(std::atomic_ref<std::uint64_t>::required_alignment) mutable std::uint64_t
        committed_seen_ = 0;
};

std::string segment_path(const std::string &directory, const segment_identity &identity);

// What else a process keeps in that folder has its segment's path and a suffix. That of its socket:
inline constexpr char companion_suffix[] = ".fds";

// Removes segment files of this user in `directory` whose owner is dead, and what was kept beside
// segment files that are gone. Returns how many files. Files of others are not opened.
int segment_sweep(const std::string &directory);

} // namespace gpusm

#endif
