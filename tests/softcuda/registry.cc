// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// registry.cc: see registry.h.
#include "registry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string>

namespace softcuda {

namespace {

constexpr std::uint64_t table_magic = 0x73636d656d763100ULL;
constexpr std::uint32_t max_processes = 1024;
constexpr std::uint32_t max_rows = 16384;
constexpr off_t life_lock_at = 4096; // one byte per process slot from here on

std::mutex in_process; // the file lock does not tell threads of one process apart

bool set_lock(int fd, short type, off_t at, bool wait)
{
    struct flock want {};
    want.l_type = type;
    want.l_whence = SEEK_SET;
    want.l_start = at;
    want.l_len = 1;
    int answer;
    do {
        answer = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &want);
    } while (answer != 0 && errno == EINTR);
    return answer == 0;
}

// Whether somebody else holds the byte.
bool held_by_other(int fd, off_t at)
{
    struct flock want {};
    want.l_type = F_WRLCK;
    want.l_whence = SEEK_SET;
    want.l_start = at;
    want.l_len = 1;
    return fcntl(fd, F_OFD_GETLK, &want) == 0 && want.l_type != F_UNLCK;
}

std::string file_path()
{
    const char *dir = std::getenv("GPUSM_SOFTCUDA_DIR");
    std::string path = dir != nullptr && *dir != 0 ? dir : "/dev/shm";
    return path + "/softcuda." + std::to_string(getuid()) + ".registry.v1";
}

} // namespace

struct registry::shared_table {
    struct row {
        std::uint64_t block_id; // 0: free
        std::uint64_t bytes;
        std::uint32_t device;
        std::uint32_t process;
    };
    std::uint64_t magic;
    std::uint32_t rows_end; // rows at and after this were never used
    std::uint32_t processes_end;
    std::uint32_t process_used[max_processes];
    std::uint64_t used[max_devices]; // sum over the blocks; exact again after every reap
    row rows[max_rows];
};

class registry::locked {
  public:
    explicit locked(int fd) : fd_(fd)
    {
        in_process.lock();
        if (fd_ >= 0) {
            set_lock(fd_, F_WRLCK, 0, true);
        }
    }
    ~locked()
    {
        if (fd_ >= 0) {
            set_lock(fd_, F_UNLCK, 0, false);
        }
        in_process.unlock();
    }
    locked(const locked &) = delete;
    locked &operator=(const locked &) = delete;

  private:
    int fd_;
};

void registry::open()
{
    std::string path = file_path();
    for (int attempt = 0; attempt < 100; ++attempt) {
        int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || !set_lock(fd, F_WRLCK, 0, true)) {
            if (fd >= 0) {
                ::close(fd);
            }
            break;
        }
        struct stat st {};
        if (fstat(fd, &st) != 0 || st.st_nlink == 0) {
            ::close(fd); // its last user removed it between our open and our lock
            continue;
        }
        void *at = MAP_FAILED;
        if (posix_fallocate(fd, 0, sizeof(shared_table)) == 0) { // now, instead of SIGBUS later
            at = mmap(nullptr, sizeof(shared_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        } else if (st.st_size == 0) {
            unlink(path.c_str());
        }
        if (at == MAP_FAILED) {
            ::close(fd);
            break;
        }
        table_ = static_cast<shared_table *>(at);
        fd_ = fd;
        if (table_->magic != table_magic) {
            table_->rows_end = 0;
            table_->processes_end = 0;
            count_again();
            table_->magic = table_magic;
        }
        me_ = max_processes;
        reap();
        for (std::uint32_t i = 0; i < max_processes && me_ == max_processes; ++i) {
            if ((i >= table_->processes_end || table_->process_used[i] == 0) &&
                set_lock(fd_, F_WRLCK, life_lock_at + i, false)) {
                me_ = i;
                table_->process_used[i] = 1;
                table_->processes_end = std::max(table_->processes_end, i + 1);
            }
        }
        set_lock(fd_, F_UNLCK, 0, false);
        return;
    }
    table_ = static_cast<shared_table *>(mmap(nullptr, sizeof(shared_table), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

void registry::close()
{
    locked hold(fd_);
    if (table_ == nullptr || fd_ < 0) {
        return;
    }
    for (std::uint32_t i = 0; i < table_->rows_end; ++i) {
        if (table_->rows[i].block_id != 0 && table_->rows[i].process == me_) {
            drop(i);
        }
    }
    if (me_ < max_processes) {
        table_->process_used[me_] = 0;
    }
    reap();
    bool alone = true;
    for (std::uint32_t i = 0; i < table_->processes_end; ++i) {
        alone = alone && table_->process_used[i] == 0;
    }
    if (alone) {
        unlink(file_path().c_str());
    }
    me_ = max_processes + 1; // later frees of this process find nothing
}

// Forgets processes that died without saying so.
void registry::reap()
{
    if (fd_ < 0) {
        return;
    }
    bool died = false;
    for (std::uint32_t p = 0; p < table_->processes_end; ++p) {
        if (table_->process_used[p] == 0 || p == me_ || held_by_other(fd_, life_lock_at + p)) {
            continue;
        }
        for (std::uint32_t i = 0; i < table_->rows_end; ++i) {
            if (table_->rows[i].process == p) {
                table_->rows[i].block_id = 0;
            }
        }
        table_->process_used[p] = 0;
        died = true;
    }
    if (died) {
        count_again();
    }
}

// Whether a row other than `except` names the block.
bool registry::named(std::uint64_t block_id, std::uint32_t except) const
{
    for (std::uint32_t i = 0; i < table_->rows_end; ++i) {
        if (i != except && table_->rows[i].block_id == block_id) {
            return true;
        }
    }
    return false;
}

// Row `i` is given up; its bytes with it when it was the last of its block.
void registry::drop(std::uint32_t i)
{
    auto &row = table_->rows[i];
    if (!named(row.block_id, i)) {
        table_->used[row.device] -= row.bytes;
    }
    row.block_id = 0;
}

// A process killed between two stores leaves a wrong sum; it also leaves a reap to do.
void registry::count_again()
{
    for (std::uint64_t &bytes : table_->used) {
        bytes = 0;
    }
    for (std::uint32_t i = 0; i < table_->rows_end; ++i) {
        const auto &row = table_->rows[i];
        bool counted = row.block_id == 0;
        for (std::uint32_t j = 0; j < i && !counted; ++j) {
            counted = table_->rows[j].block_id == row.block_id;
        }
        table_->used[row.device % max_devices] += counted ? 0 : row.bytes;
    }
}

void registry::insert(std::uint64_t block_id, int device, std::uint64_t bytes)
{
    if (!named(block_id, max_rows)) {
        table_->used[device] += bytes;
    }
    for (std::uint32_t i = 0; i < max_rows; ++i) {
        if (i < table_->rows_end && table_->rows[i].block_id != 0) {
            continue;
        }
        auto &row = table_->rows[i];
        row.bytes = bytes;
        row.device = static_cast<std::uint32_t>(device);
        row.process = me_;
        row.block_id = block_id; // last: a process killed in between leaves a free row
        table_->rows_end = std::max(table_->rows_end, i + 1);
        return;
    }
}

bool registry::add(std::uint64_t block_id, int device, std::uint64_t bytes,
                   std::uint64_t limit_bytes)
{
    locked hold(fd_);
    if (bytes > limit_bytes) {
        return false;
    }
    if (table_->used[device] > limit_bytes - bytes) {
        reap();
        if (table_->used[device] > limit_bytes - bytes) {
            return false;
        }
    }
    insert(block_id, device, bytes);
    return true;
}

void registry::join(std::uint64_t block_id, int device, std::uint64_t bytes)
{
    locked hold(fd_);
    insert(block_id, device, bytes);
}

void registry::remove(std::uint64_t block_id)
{
    locked hold(fd_);
    for (std::uint32_t i = 0; i < table_->rows_end; ++i) {
        auto &row = table_->rows[i];
        if (row.block_id == block_id && row.process == me_) {
            drop(i);
            break;
        }
    }
    while (table_->rows_end > 0 && table_->rows[table_->rows_end - 1].block_id == 0) {
        --table_->rows_end;
    }
}

std::uint64_t registry::used(int device)
{
    locked hold(fd_);
    reap();
    return table_->used[device];
}

} // namespace softcuda
