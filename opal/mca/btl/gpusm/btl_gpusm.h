// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm.h: what the files of the glue share: component, module, endpoint, descriptor. The
// glue translates between Open MPI's calls and the layers:
//
//   btl_gpusm_component.cc  register, open, init, close; housekeeping
//   btl_gpusm_params.cc     MCA parameters and performance variables
//   btl_gpusm_exclusive.cc  no peer is shared with another BTL
//   btl_gpusm_module.cc     add_procs, del_procs, finalize
//   btl_gpusm_messages.cc   what ob1 calls for every message: sendi, send, alloc, prepare_src,
//                           register_mem, get; and progress    START HERE
//   btl_gpusm_frags.{h,cc}  fragments: their lists, posting, and how they come back
//   btl_gpusm_transfer.{h,cc} a btl_get on its way, in whatever mode, and its end
//   btl_gpusm_host.{h,cc}   long messages between host memories: single copies
//   btl_gpusm_self.{h,cc}   messages of the process to itself: the second module
//   btl_gpusm_device.{h,cc} messages out of or into device memory; with _ipc (what the
//                           library needs of messages), _stage*, _rings (memory that cannot be
//                           mapped), _views (buffers with gaps; _view_hooks: how Open MPI is
//                           told of them) and _pointer_check (is a buffer device memory?)
//   btl_gpusm_peers.{h,cc}  peers that have ended, and the end of what is sent to them
//   btl_gpusm_process.h     what add_procs tells of a peer
//   btl_gpusm_help.cc       messages for the user
//
// State is in transport.h, and nowhere else. Modules and endpoints point to it, and who knows
// neither is given it.
#ifndef BTL_GPUSM_H
#define BTL_GPUSM_H

#include "opal/mca/btl/gpusm/btl_gpusm_opal.h"

#include "opal/mca/common/gpusm/base/c_entry.h"
#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/replaced_function.h"
#include "opal/mca/common/gpusm/base/sanitizer.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/btl_gpusm_counters.h"
#include "opal/mca/btl/gpusm/btl_gpusm_peers.h"
#include "opal/mca/btl/gpusm/btl_gpusm_process.h"
#include "opal/mca/btl/gpusm/btl_gpusm_summary.h"
#include "opal/mca/btl/gpusm/btl_gpusm_view_hooks.h"
#include "opal/mca/common/gpusm/device_offers.h"
#include "opal/mca/common/gpusm/local_process.h"
#include "opal/mca/common/gpusm/packed_memory.h"
#include "opal/mca/common/gpusm/shm/wire.h"
#include "opal/mca/btl/gpusm/transport.h"

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace gpusm {

struct frag_list; // btl_gpusm_frags.h
class stream_sender;
struct stream_memory;
struct stream_message;

// Single copies between our memory and a peer's (btl_gpusm_host.cc).
struct single_copy {
    std::atomic<bool> asked{false};             // `peer` is known
    mca_smsc_endpoint_t *peer = nullptr;        // owned; null: fragments
    reach found;                                // `peer`, by the framework
    reach reads, writes;                        // of the peer's memory
    reach its_reads;                            // of our memory, as the peer says
    std::atomic<std::uint32_t> its_refusals{0}; // as they were counted when we last looked
    tally<std::uint32_t> users;                 // threads that use `peer`
};

// The export of a peer that was found last on another device than the receiver's.
struct last_elsewhere {
    std::uint32_t slot = no_export_slot;
    std::uint32_t into = 0; // device::index of the receiver's
    std::uint64_t generation = 0;
};

} // namespace gpusm

struct mca_btl_base_endpoint_t {
    gpusm::peer *peer;
    gpusm::transport *transport; // which it belongs to
    gpusm::known_process<opal_proc_t> proc;
    gpusm::device_link *link; // the library's
    bool active;              // progress_sends will look after it
    std::uint32_t deferred;   // control messages to it that wait for fragments
    bool given_up;            // ob1 knows that the peer is closed, or need not
    gpusm::peer_end end;      // of the peer's process
    gpusm::single_copy single;
    std::atomic<std::uint64_t> received_bytes; // of messages from the peer, or to be fetched
    gpusm::reach its_writes;                   // of a part of a message, to our memory
    gpusm::reach its_pushes;                   // the same of its device memory
    std::atomic<bool> get_enabled;             // ob1 offers our device memory to the peer
    bool gpu_warned;                           // the user has been told why it does not
    gpusm::reach direct_copies; // of page-locked memory into the peer's device memory
    std::unique_ptr<gpusm::peer_summary> summary; // null unless the user wants one
    // Under the GPU lock.
    gpusm::last_elsewhere elsewhere;
    gpusm::reach_table<std::uint32_t> rings;     // on devices of ours, by device::index
    gpusm::reach_table<std::uint32_t> its_rings; // on its devices, from one of ours
};

// A send descriptor and the shared fragment that belongs to it for good. A control message that
// finds all fragments in flight has a descriptor outside the segment: `out.header` and `list` are
// null.
struct mca_btl_gpusm_frag_t {
    mca_btl_base_descriptor_t base;
    mca_btl_base_segment_t segment;
    gpusm::outgoing out;
    mca_btl_base_endpoint_t *endpoint; // once it has been posted
    gpusm::frag_list *list;
    gpusm::frag_kind kind; // these two only outside the segment
    mca_btl_base_tag_t tag;
};

// What ob1 carries to the peer that will call btl_get.
struct mca_btl_base_registration_handle_t {
    gpusm::remote_handle remote;
};

struct mca_btl_gpusm_component_t {
    mca_btl_base_component_3_0_0_t super;

    // Parameters; btl_gpusm_params.cc has their meanings, ranges and defaults.
    unsigned free_list_max;
    unsigned fifo_size;
    unsigned fast_box_max;
    size_t segment_size;
    char *backing_directory;
    bool use_cuda_ipc;
    bool use_cuda_events;
    bool register_segments;
    size_t cache_max_bytes;
    unsigned kernel_blocks;
    bool use_batch_copies;
    bool quick_pointer_check;
    size_t staging_device_bytes;
    size_t staging_host_bytes;
    bool use_direct_host;
    unsigned delegate_wait; // microseconds
    unsigned cuda_ipc_verbose;
    bool use_single_copy;
    bool use_self;
    size_t stream_host_after;
    bool check_sync;
    bool summary;

    // MCA holds pointers to them for as long as the component is loaded.
    std::atomic<unsigned long long> counters[static_cast<unsigned>(gpusm::counter::count)];
    int output;                  // stream for log lines
    gpusm::transport *transport; // owned; null before init and after finalize
    // Open MPI's question about addresses (btl_gpusm_gpu.cc), which somebody else may still ask
    // through us when the transport has ended; and what the answers come from, null before and
    // then.
    gpusm::replaced_function<std::remove_pointer_t<decltype(opal_accelerator.check_addr)>> check;
    std::atomic<gpusm::transport *> checks_for;
    std::atomic<bool> checks_quickly; // else it is there for views only
    gpusm::view_hooks view_hooks;
};

struct mca_btl_gpusm_t {
    mca_btl_base_module_t super;
    mca_btl_base_module_error_cb_fn_t error_cb;
    gpusm::transport *transport; // the component's
};

extern "C" {
OPAL_DECLSPEC extern mca_btl_gpusm_component_t mca_btl_gpusm_component;
extern mca_btl_gpusm_t mca_btl_gpusm;

gpusm::entry_type<mca_btl_base_module_alloc_fn_t> mca_btl_gpusm_alloc;
gpusm::entry_type<mca_btl_base_module_prepare_fn_t> mca_btl_gpusm_prepare_src;
gpusm::entry_type<mca_btl_base_module_send_fn_t> mca_btl_gpusm_send;
gpusm::entry_type<mca_btl_base_module_sendi_fn_t> mca_btl_gpusm_sendi;
gpusm::entry_type<mca_btl_base_module_register_mem_fn_t> mca_btl_gpusm_register_mem;
gpusm::entry_type<mca_btl_base_module_deregister_mem_fn_t> mca_btl_gpusm_deregister_mem;
gpusm::entry_type<mca_btl_base_module_get_fn_t> mca_btl_gpusm_get;
int mca_btl_gpusm_progress(void) noexcept;
}

namespace gpusm {

// Has this machine fewer processors than the job has processes here? Known once PMIx is.
bool is_oversubscribed();

// messages: can this be device memory? Where ob1 says so itself, host messages cost no question.
bool may_be_device_memory(const void *base, std::uint32_t flags);

// params: registers everything with MCA.
void register_parameters();
// What they say to the library, and who this process is. `content_bytes`: see settings.
settings settings_of_parameters(std::size_t content_bytes);
// False, after a help text, when a value is out of range.
bool check_parameters();
void register_counters();

// The object of which `member` is the part at `offset`, as offsetof gives it.
template <typename Outer> Outer *enclosing(void *member, std::size_t offset)
{
    static_assert(std::is_standard_layout_v<Outer>);
    return reinterpret_cast<Outer *>(static_cast<unsigned char *>(member) - offset);
}

// Makes a message of `bytes` of a fragment that nobody wants to hear of again: it comes back by
// itself.
inline void fire_and_forget(mca_btl_gpusm_frag_t *frag, std::size_t bytes)
{
    frag->segment.seg_len = bytes;
    frag->base.des_flags = MCA_BTL_DES_FLAGS_BTL_OWNERSHIP;
    frag->base.des_cbfunc = nullptr;
}

// Objects at stable addresses, used over and over.
template <typename T> class recycled {
  public:
    T *take()
    {
        if (free_.empty()) {
            return &all_.emplace_back();
        }
        T *taken = free_.back();
        free_.pop_back();
        *taken = T{};
        return taken;
    }
    void give(T *back) { free_.push_back(back); }

  private:
    std::deque<T> all_;
    std::vector<T *> free_;
};

// What the functions that Open MPI calls work on: the state of the module that it names.
inline transport &transport_of(const mca_btl_base_module_t *btl)
{
    return *reinterpret_cast<const mca_btl_gpusm_t *>(btl)->transport;
}

// Open MPI's free list of plain objects that begin with an opal_free_list_item_t, without a bound.
// What is taken holds what it held when it was given back, at first zeros. Any thread.
template <typename Item> class free_list {
  public:
    explicit free_list(opal_free_list_item_init_fn_t made = nullptr, void *context = nullptr)
    {
        static_assert(std::is_standard_layout_v<Item>);
        constexpr int items = 64; // at first, and more each time
        constexpr int no_limit = -1;
        OBJ_CONSTRUCT(&list_, opal_free_list_t);
        (void)opal_free_list_init(&list_, sizeof(Item), opal_cache_line_size,
                                  OBJ_CLASS(opal_free_list_item_t), 0, 0, items, no_limit, items,
                                  nullptr, 0, nullptr, made, context);
    }
    ~free_list() { OBJ_DESTRUCT(&list_); }
    free_list(const free_list &) = delete;
    free_list &operator=(const free_list &) = delete;

    // Null: there is no memory.
    Item *take() { return take_over(reinterpret_cast<Item *>(opal_free_list_get(&list_))); }
    void give(Item *back)
    {
        opal_free_list_return(&list_, reinterpret_cast<opal_free_list_item_t *>(hand_over(back)));
    }

  private:
    opal_free_list_t list_;
};

// What register_mem made; ob1 sees the handle inside.
struct registration {
    opal_free_list_item_t super;
    mca_btl_base_registration_handle_t handle;
    struct exported *exported; // referenced; null unless the handle names an export
    struct device *device;     // whose context the memory wants; null for host memory
    struct view *view;         // which the address lies in, or null
    packed_block packed;       // what was packed of it for a peer
    std::uint64_t plain_until; // where the device memory ends that a kernel may write, else 0
    bool streamed;             // it is or was being streamed
    bool unusable;             // nobody knows in which context: gets into it fail
    std::uint32_t number;      // for good; what a handle of kind `staged` or `host` calls `slot`
    std::uint64_t turn;        // raised by every register_mem and every deregister_mem: odd while
                               // it is registered; what such a handle calls `generation`

    // The peer is to ask for this memory by its number, as it cannot map it.
    void name(share_kind kind, std::uint64_t address, std::size_t len_bytes)
    {
        handle.remote = {number, no_event_slot, kind, 0, turn, address, len_bytes};
    }
};

// All registrations ever made (btl_gpusm_registrations.cc). Any thread that does not hold `lock`.
class registration_table {
  public:
    explicit registration_table(optional_mutex &lock) : lock_(lock), list_(entry(number), this) {}

    // One that names nothing yet. Null: there is no memory.
    registration *take();
    void give(registration *back) { list_.give(back); }
    // The registration that a peer's handle of kind `staged` or `host` names, if it is registered
    // and [address, address + len_bytes) lies in it; else null. For a staged one the caller holds
    // the GPU lock; a host one stays until the thread that makes progress ends its message.
    registration *named(const remote_handle &handle, std::uint64_t address,
                        std::uint64_t len_bytes);

  private:
    static int number(opal_free_list_item_t *item, void *table) noexcept;

    optional_mutex &lock_;
    std::vector<registration *> numbered_; // under the lock
    free_list<registration> list_;
};

// Null for null: a get may come without a handle.
inline registration *registration_around(mca_btl_base_registration_handle_t *handle)
{
    return nullptr == handle ? nullptr
                             : enclosing<registration>(handle, offsetof(registration, handle));
}

// Adds to a number that tells how it goes: what a thread adds while threads begin may be lost.
template <typename Number> void add_to(std::atomic<Number> &number, Number amount)
{
    if (has_threads()) {
        number.fetch_add(amount, std::memory_order_relaxed);
    } else {
        number.store(number.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
}

// Of a message to or from that peer.
inline void count(const mca_btl_base_endpoint_t *peer, counter which, unsigned long long amount)
{
    add_to(mca_btl_gpusm_component.counters[static_cast<unsigned>(which)], amount);
    if (peer->summary != nullptr) [[unlikely]] {
        add_to(peer->summary->counted[static_cast<unsigned>(which)], amount);
    }
}

// A message to that peer cannot be registered, and goes in fragments; or one to or from it takes
// another way for some other reason. Tells the log and the summary.
void fell_back_to_fragments(const mca_btl_base_endpoint_t *peer, status why, std::size_t bytes);
void fell_back(const mca_btl_base_endpoint_t *peer, std::string_view what, status why,
               std::size_t bytes);

// exclusive: takes an exclusivity that no BTL has which has been opened. Before any peer is added,
// as Open MPI then brings the modules into their order.
void raise_above_equals();
// Whether no other module has ours; if one has, the user is told, and gpusm takes no peers.
bool has_peers_alone(transport &of);

// help: prints the text of a [topic] of help-mpi-btl-gpusm.txt, filled in like printf.
void show_help(const char *topic, ...);
// Installs the log sink that speaks opal_output.
void log_to_opal();

// component: ends the transport, if there is one.
void release_component();

// frags: what all fragments together, and what longer messages need besides, can come to take of
// the segment.
std::size_t planned_bytes();
// Does somebody wait for the end of it? A descriptor that stays the caller's is only free to reuse
// once the peer has read it.
inline bool calls_back(const mca_btl_gpusm_frag_t *frag)
{
    return MCA_BTL_DES_FLAGS_BTL_OWNERSHIP !=
           (frag->base.des_flags &
            (MCA_BTL_DES_FLAGS_BTL_OWNERSHIP | MCA_BTL_DES_SEND_ALWAYS_CALLBACK));
}
// What Open MPI is told of a post. With UNREACH ob1 ends the request as MPI_ERR_PROC_FAILED, so
// that is for what is final; OUT_OF_RESOURCE it tries again.
int opal_answer(status of_post);

// A message between the two ends of a stream (protocol/stream.h), and what is behind it, if not
// null: as frag_store::post_control.
status post_stream_message(mca_btl_base_endpoint_t *to, frag_kind kind,
                           const stream_message &message, const stream_memory *memory);
// One that has come in for `streams`; false: it makes no sense.
bool stream_message_for(stream_sender *streams, mca_btl_base_endpoint_t *from,
                        const unsigned char *payload, std::size_t bytes);

// Hands a message to the layer above. `bytes` have been checked against the fragment. A part of
// what every message costs, so without a call of its own.
inline void deliver(mca_btl_base_endpoint_t *from, mca_btl_base_tag_t tag, const void *message,
                    std::size_t bytes)
{
    if (tag >= MCA_BTL_TAG_MAX) [[unlikely]] {
        return; // a peer's byte
    }
    const mca_btl_active_message_callback_t &callback = mca_btl_base_active_message_trigger[tag];
    if (nullptr == callback.cbfunc) [[unlikely]] {
        return;
    }
    mca_btl_base_segment_t segment;
    segment.seg_addr.pval = const_cast<void *>(message);
    segment.seg_len = bytes;
    const mca_btl_base_receive_descriptor_t received = {.endpoint = from,
                                                        .des_segments = &segment,
                                                        .des_segment_count = 1,
                                                        .tag = tag,
                                                        .cbdata = callback.cbdata};
    callback.cbfunc(&mca_btl_gpusm.super, &received);
}

// ipc: lets ob1 offer device memory to that peer, if it does not do so yet.
void enable_get(mca_btl_base_endpoint_t *endpoint);
// ipc: a GPU message is about to leave for `endpoint`: may it be fetched there? Asks the peer
// whether it uses a device, if it is time to ask.
bool is_offered_to(mca_btl_base_endpoint_t *endpoint);
// A message of the glue's own has come in.
void take_our_own(mca_btl_base_endpoint_t *from, const frag_header &header,
                  const unsigned char *payload);

} // namespace gpusm

#endif
