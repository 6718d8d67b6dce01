// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// facts.h: all that gpusm_info finds out, as it is printed: by print_text.cc and, field by field
// under the same names, by print_json.cc. What could not be found out is empty, or has no value.
#ifndef GPUSM_INFO_FACTS_H
#define GPUSM_INFO_FACTS_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpusm::info {

struct options {
    bool json = false;
    bool help = false;
    bool tries = true;       // have processes share memory
    bool every_rank = false; // in a job each rank prints its page
    int timeout_s = 60;      // for ompi_info, and for the driver
};

using number = std::optional<std::int64_t>;

struct host_facts {
    std::string kernel; // "Linux 6.1.0 x86_64"
    std::string glibc;
    std::string cpu;
    std::int64_t processors = 0;
};

// A resource limit; no value: unlimited.
struct limit {
    number soft;
    number hard;
};

struct limit_facts {
    limit memlock;
    limit nofile;
    std::string shared_folder = "/dev/shm"; // where segments are made
    number shared_total_bytes;              // of the file system there
    number shared_free_bytes;
    number cgroup_memory_bytes; // the lowest limit of the groups that this process is in
    number memory_bytes;        // of the machine
    bool proc = false;          // /proc can be read
    bool own_proc = false;      // and is of this PID namespace
    number huge_pages;          // reserved ones
    number huge_pages_free;
    number huge_page_bytes;
    std::string transparent_huge_pages; // the kernel's choice, and that for shared memory
    std::string transparent_huge_pages_shared;
};

struct namespace_facts {
    struct each {
        std::string name; // user, pid, ipc, net, mnt
        std::string id;   // "user:[4026531837]"
    };
    std::vector<each> all;
    bool initial_user = true; // the user namespace maps every user to itself
    std::vector<std::string> container_hints;
};

struct variable {
    std::string name;
    std::string value;
};

// As mpirun or srun say in the environment; no value outside of a job.
struct job_facts {
    number rank;
    number local_rank;
    number local_size;
    number size;
};

struct component {
    std::string framework;
    std::string name;
    std::string version;
};

// A parameter that selects components.
struct setting {
    std::string name;
    std::string value;
    std::string source; // "default", "environment", a file
};

struct openmpi_facts {
    std::string ompi_info; // the program that was asked; empty: none was found
    std::string problem;   // why there is no answer; empty: there is one
    std::string version;
    std::string prefix;
    std::string package;
    std::optional<bool> cuda;          // built with it
    std::vector<component> components; // accelerator, btl, coll, osc, pml, rcache and smsc
    struct weighed {
        std::string name;
        std::int64_t value = 0;
    };
    std::vector<weighed> exclusivities; // of BTLs
    std::vector<weighed> smsc_priorities;
    std::vector<setting> settings;
    std::vector<std::string>
        messages; // of Open MPI about our components, such as why one stays away

    bool has(const std::string &framework, const std::string &name) const;
    const setting *find_setting(const std::string &name) const;
};

struct driver_facts {
    std::string problem;     // why no device can be used; empty: nothing is known to be wrong
    std::string failed_call; // the driver's function that failed, if it was one, and what it said
    std::string failed_error;
    std::string missing; // a function without which gpusm uses no device
    bool loaded = false;
    bool batch_copies = false;  // cuMemcpyBatchAsync
    bool context_flags = false; // cuCtxSetFlags
    number cuda_version;        // 13000 is CUDA 13.0
    std::string kernel_module;  // first line of /proc/driver/nvidia/version
    std::string release;        // as NVML says: "580.95.05"
    bool nvml = false;
    number device_files; // /dev/nvidia0, 1 ...
    std::string mps_folder;
    bool mps_control = false; // its control file is there
};

struct device_facts {
    std::int64_t ordinal = 0;
    std::string name;
    std::string uuid;
    std::string gpu_uuid; // differs from uuid where the device is an instance of a GPU (MIG)
    std::string pci;
    number memory_bytes;
    std::string compute_capability;
    std::string compute_mode; // default, exclusive process, prohibited
    std::optional<bool> mps;  // contexts are made in MPS
    std::optional<bool> mig;  // the GPU is in that mode
    number nvlinks;           // that are up
    number numa_node;

    bool is_instance() const { return !gpu_uuid.empty() && gpu_uuid != uuid; }
};

// From one device to another one.
struct link_facts {
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::optional<bool> access;
    std::optional<bool> atomics;
    number performance_rank; // 0 is the best
    std::optional<bool> nvlink;
    std::string path; // what lies between them on the bus
};

// What came of memory of one process, on device `from`, that another process used on device `to`.
struct share_facts {
    std::string kind; // device, vmm, pool, managed, page_locked
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::string result; // "mapped", "refused", "not offered", "wrong bytes"
    std::string call;   // where it ended
    std::string error;  // the driver's name of it

    bool good() const { return "mapped" == result; }
    std::string pair() const { return std::to_string(from) + "-" + std::to_string(to); }
};

// One process reads memory of another one that it has not started.
struct single_copy_facts {
    bool tried = false;
    std::string error;           // empty: it worked, at once
    std::string permitted_error; // likewise, when the owner had allowed it, as Open MPI does
    number ptrace_scope;
    number seccomp; // 0 none, 1 strict, 2 a filter
    bool xpmem = false;
    bool knem = false;
};

// How the two processes that tried all this ended.
struct try_facts {
    bool wanted = false;
    std::string problem; // empty: they did all
    std::string begun;   // what they had begun when they ended early
    bool all_devices = true;
    std::int64_t devices = 0; // that took part
};

enum class severity { note, warning, error };

struct finding {
    severity level = severity::note;
    std::string id; // stable: scripts may ask for it
    std::string seen;
    std::string to_do;
};

struct facts {
    host_facts host;
    limit_facts limits;
    namespace_facts namespaces;
    std::vector<variable> environment;
    job_facts job;
    openmpi_facts openmpi;
    driver_facts driver;
    std::vector<device_facts> devices;
    std::vector<link_facts> links;
    std::vector<share_facts> shares;
    single_copy_facts single_copies;
    try_facts tries;
    std::vector<finding> findings;
};

// Of what gpusm was built with.
inline constexpr const char *gpusm_version = PACKAGE_VERSION;
inline constexpr const char *built_for_openmpi = GPUSM_INFO_BUILT_FOR;
std::string built_with_cuda();
std::string cuda_text(std::int64_t version); // "13.0" of 13000

const char *severity_name(severity level);
// "devices 0-1 1-0" of " 0-1 1-0"; or that it is each pair that was tried, where they are many.
std::string pairs_text(const facts &all, const std::string &pairs);

// --- who finds out what
// -----------------------------------------------------------------------------
host_facts look_at_host();
limit_facts look_at_limits(const std::string &shared_folder);
namespace_facts look_at_namespaces();
std::vector<variable> look_at_environment();
job_facts look_at_job();
openmpi_facts ask_openmpi(int timeout_s);
// Driver, devices, links, what can be shared, single copies: by two processes of this program.
void ask_devices(const options &wanted, facts *out);
void find_problems(facts *out);

void print_text(const facts &all);
void print_json(const facts &all);

} // namespace gpusm::info

#endif
