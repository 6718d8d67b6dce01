// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage.h: staged gets, both sides. What the rest of the glue calls is in
// btl_gpusm_get.h; who gets which piece is decided in shm/stage.h; docs/staging.md explains the
// whole.
//
//   stage_rings    owner's side: rings, and the copies into them (btl_gpusm_stage_rings.cc)
//   stage_writes   owner's side: copies into memory of the readers (btl_gpusm_stage_writes.cc)
//   stage_pushes   owner's side: parts of gets into host memory of the readers
//                  (btl_gpusm_stage_pushes.cc)
//   stage_reads    reader's side: the copies out of the peers' rings (btl_gpusm_stage_reads.cc);
//                  the gets that both sides copy (btl_gpusm_stage_parts.cc)
//
// Everything here is called under the GPU lock.
#ifndef BTL_GPUSM_STAGE_H
#define BTL_GPUSM_STAGE_H

#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/shm/stage.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpusm {

// What has failed so many times in a row is not tried any more: copies into a ring on a device,
// whose context may have been destroyed; copies by the owner into a reader's device memory; pushes.
inline constexpr std::uint32_t failures_in_a_row = 4;

struct owned_ring;

// A copy into a ring.
struct stage_fill {
    copy_request copy;
    owned_ring *ring;
    std::uint32_t number; // of the piece, in this ring
};

// A ring of this process.
struct owned_ring {
    owned_ring(const stage_shape &shape, std::uint32_t first);

    stage_ring pieces;
    const std::uint32_t first_piece;                   // what readers call its first block
    device *on = nullptr;                              // null: in our segment
    std::uint64_t base = 0;                            // an address here
    exported *entry = nullptr;                         // of one on a device; referenced
    remote_handle handle{};                            // what readers are told
    std::uint64_t position = 0;                        // of `base`, in what the handle names
    std::uint32_t failures = 0;                        // of copies into it, in a row
    std::array<stage_fill, stage_ring_blocks> fills{}; // by piece
};

class stage_rings {
  public:
    explicit stage_rings(gpu_side &side) : gpu_(side) {}
    // Gives the rings back. No copy into one may be under way.
    ~stage_rings();
    stage_rings(const stage_rings &) = delete;
    stage_rings &operator=(const stage_rings &) = delete;

    // Messages of a reader, and a garbled one closes it.
    // `split`: the reader copies a part.
    void fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
               split_word *split = nullptr);
    void cancel(const mca_btl_base_endpoint_t *reader, const stage_message &message);
    void release(mca_btl_base_endpoint_t *reader, const stage_message &message);

    // A stage_fill has ended.
    void copied(copy_request *copy);

    // Fills pieces; those of host memory for about `progress_copy_bytes`. Returns how many.
    int progress();

    // Forgets what the peer wants and has.
    void drop(const mca_btl_base_endpoint_t *reader);

    bool idle() const;

    // As stage_ring_on.
    status offer(device &of, remote_handle *handle);

  private:
    owned_ring *ring_for(device *source, bool by_host);
    owned_ring *device_ring(device &on);
    owned_ring *host_ring();
    owned_ring *add_ring(std::size_t block_bytes, std::size_t most_piece_bytes);
    status make_device_ring(device &on);
    void fill(owned_ring &ring, const stage_piece &piece, std::size_t *copied_here);
    void speak(owned_ring &ring);
    bool waits_for_legacy(device &of);
    void record_legacy(device &of);
    void refuse(mca_btl_base_endpoint_t *reader, std::uint32_t get);

    gpu_side &gpu_;
    std::vector<std::unique_ptr<owned_ring>> rings_; // a piece's number tells which one it is of
    std::vector<const device *> without_;            // devices that cannot have a ring
    // Are copies that return to the program complete? By device.
    enum class mark : std::uint8_t { unknown, synchronous, cannot };
    std::vector<mark> marked_;
    owned_ring *host_ = nullptr;
    bool host_failed_ = false;
    bool asked_to_register_ = false;
};

// A copy into memory of a reader; recycled.
struct stage_write {
    copy_request copy;
    mca_btl_base_endpoint_t *reader;
    const registration *source;
    std::uint64_t turn; // of the source, when the copy began
    mapping *mapped;    // referenced; null: not under way
    std::uint32_t get;
    std::uint32_t failures; // of the reader's, when the copy began
    bool cancelled;
    stage_write *next; // of those that are free
};

class stage_writes {
  public:
    explicit stage_writes(gpu_side &side) : gpu_(side) {}
    stage_writes(const stage_writes &) = delete;
    stage_writes &operator=(const stage_writes &) = delete;

    // A reader's fetch that names memory of its own; a garbled one closes it. False: nothing has
    // been done, and it goes in pieces. Else one word will be said about it when the copy has
    // ended, unless the reader is closed.
    bool fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
               const stage_target &target);
    // The copy goes on, but ends in `failed`.
    void cancel(const mca_btl_base_endpoint_t *reader, std::uint32_t get);

    // A stage_write's copy has ended.
    void copied(copy_request *copy);

  private:
    stage_write *take_write();
    status map(mca_btl_base_endpoint_t *reader, const remote_handle &handle, std::uint64_t source,
               device **into, mapping **out);

    gpu_side &gpu_;
    std::deque<stage_write> writes_; // all ever made: stable addresses
    stage_write *free_writes_ = nullptr;
    std::vector<std::uint32_t> under_way_; // by endpoint number
};

// A part of a reader's get; recycled.
struct stage_push {
    bounce job;
    exported *source; // referenced; null: not under way
    std::uint32_t get;
    stage_push *next; // of those that are free
};

class stage_pushes {
  public:
    explicit stage_pushes(gpu_side &side) : gpu_(side) {}
    stage_pushes(const stage_pushes &) = delete;
    stage_pushes &operator=(const stage_pushes &) = delete;

    // A reader's fetch of device memory that names host memory of its own; a garbled one closes it.
    // Else one word will be said about it, unless the reader is closed.
    void fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
               const stage_target &target, split_word *split);

    // A stage_push's job has ended.
    void over(bounce *job);

  private:
    gpu_side &gpu_;
    std::deque<stage_push> pushes_; // all ever made: stable addresses
    stage_push *free_pushes_ = nullptr;
    std::vector<std::uint32_t> under_way_; // by endpoint number
};

// A copy out of a peer's ring; recycled.
struct stage_read {
    copy_request copy;
    mca_btl_base_endpoint_t *owner;
    staged_get *get;
    mapping *mapped;     // referenced; null unless the ring is on a device
    std::uint32_t piece; // as the owner calls it
    stage_read *next;    // of those that wait for the processor, or of those that are free
};

class stage_reads {
  public:
    explicit stage_reads(gpu_side &side) : gpu_(side) {}
    // Undoes the registrations of peers' rings. No copy may be under way.
    ~stage_reads();
    stage_reads(const stage_reads &) = delete;
    stage_reads &operator=(const stage_reads &) = delete;

    // As stage_fetch.
    status fetch(get_request *get);
    // As stage_by_host_memory.
    void ask_by_host(const mca_btl_base_endpoint_t *owner) { rings_of(owner).by_host = true; }
    // As stage_share.
    void share(get_request *get);
    // What this process had to copy of a get that has a part of the owner's is over.
    void end_pull(get_request *get);
    void end_own_part(get_request *get);

    // Messages of an owner, and a garbled one closes it.
    void piece(mca_btl_base_endpoint_t *owner, const stage_message &message);
    void failed(mca_btl_base_endpoint_t *owner, const stage_message &message);
    void written(mca_btl_base_endpoint_t *owner, const stage_message &message);

    // A stage_read's copy has ended.
    void copied(copy_request *copy);

    // Copies what is for host memory, about `progress_copy_bytes`. Returns how many pieces.
    int progress();

    // Ends the gets from peers that are closed.
    void drop_closed();

    bool idle() const { return 0 == gets_.open_count(); }

  private:
    struct peer_rings {
        bool by_host = false;        // its rings on devices cannot be mapped here
        std::uint32_t under_way = 0; // gets that it has been asked for
        get_request *first_waiting = nullptr;
        get_request *last_waiting = nullptr;
        // Of the host ring, with the driver.
        bool tried_to_register = false;
        unsigned char *registered = nullptr;
        unsigned char *end_of_registered = nullptr;
        device *registered_in = nullptr;
    };

    peer_rings &rings_of(const mca_btl_base_endpoint_t *owner);
    status ask(get_request *get);
    bool name_target(get_request *get, stage_target *out);
    void release_target(get_request *get);
    stage_target split_target(std::uint32_t number, std::uint64_t to,
                              std::uint64_t len_bytes) const;
    bool split_pull(get_request *get, staged_get *made, stage_target *target);
    static void forget_owner(get_request *get);
    void end_split(mca_btl_base_endpoint_t *owner, staged_get *get);
    split_word *take_split(std::uint32_t *number);
    void give_split(std::uint32_t number) { free_splits_ |= std::uint64_t{1} << number; }
    void end_shared(mca_btl_base_endpoint_t *owner, staged_get *get);
    void end_part(get_request *get, bool good);
    static void copy_rest(get_request *get);
    void ask_waiting(mca_btl_base_endpoint_t *owner);
    stage_read *take_read();
    void copy_from_device(stage_read *read, const stage_message &message);
    void copy_from_host(stage_read *read, const unsigned char *from);
    void register_ring(stage_read *read, const stage_message &message);
    void end(stage_read *read);
    void spoil(mca_btl_base_endpoint_t *owner, staged_get *get);
    void end_if_over(mca_btl_base_endpoint_t *owner, staged_get *get);

    gpu_side &gpu_;
    staged_gets gets_;
    std::deque<peer_rings> peers_; // by endpoint number
    std::deque<stage_read> reads_; // all ever made: stable addresses
    stage_read *free_reads_ = nullptr;
    split_word *splits_ = nullptr;                  // in our segment
    std::uint32_t splits_granule_ = 0;              // where they begin there
    std::uint64_t free_splits_ = ~std::uint64_t{0}; // a bit for each
    bool asked_for_splits_ = false;
    stage_read *first_by_hand_ = nullptr; // for the processor to copy
    stage_read *last_by_hand_ = nullptr;
};

inline get_request *request_of(const staged_get *get)
{
    return static_cast<get_request *>(get->user);
}

// A message with nothing else in it.
stage_message stage_message_of(stage_operation operation, std::uint32_t get);
// Sends a message about staging, and `target` behind a fetch that has one. False: it cannot go, and
// the peer has been closed, as the two sides have no common idea any more of what is whose.
bool send_stage_message(mca_btl_base_endpoint_t *to, const stage_message &message,
                        const stage_target *target = nullptr);
// Says that the peer's message makes no sense, and closes it.
void close_for_garbage(mca_btl_base_endpoint_t *peer, const stage_message &message);

} // namespace gpusm

#endif
