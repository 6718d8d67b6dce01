// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// windows.h: what the subtests of MPI windows share: memory with what it is to hold, byte for byte,
// elements of MPI's types and what MPI's operations make of two of them, and windows on memory of
// any kind. The results of operations are computed here, not by MPI.
#ifndef GPUSM_TESTS_MPI_WINDOWS_H
#define GPUSM_TESTS_MPI_WINDOWS_H

#include "tests/mpi/exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::exchange::windows {

inline constexpr std::size_t guard_bytes = 64;

using bytes = std::vector<unsigned char>;

// Neighbouring numbers have nothing in common.
inline std::uint64_t mixed(std::uint64_t number)
{
    number += 0x9E3779B97F4A7C15u;
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9u;
    number = (number ^ (number >> 27)) * 0x94D049BB133111EBu;
    return number ^ (number >> 31);
}

// --- elements ------------------------------------------------------------------------------------

enum class rule { replace, sum, min, band, maxloc, no_op };

inline MPI_Op op_of(rule how)
{
    switch (how) {
    case rule::replace:
        return MPI_REPLACE;
    case rule::sum:
        return MPI_SUM;
    case rule::min:
        return MPI_MIN;
    case rule::band:
        return MPI_BAND;
    case rule::maxloc:
        return MPI_MAXLOC;
    case rule::no_op:
        break;
    }
    return MPI_NO_OP;
}

inline const char *name_of(rule how)
{
    constexpr const char *names[] = {"replace", "sum", "min", "band", "maxloc", "no_op"};
    return names[static_cast<int>(how)];
}

struct element {
    const char *name;
    MPI_Datatype type;
    std::size_t extent; // bytes from one to the next
    // A value of its own for every number, small enough for some of them to be added.
    void (*put)(unsigned char *to, std::uint64_t number);
    // `into` becomes what the operation makes of it and of what comes from the origin.
    void (*combine)(rule how, const unsigned char *from, unsigned char *into);
};

template <typename T> void put_number(unsigned char *to, std::uint64_t number)
{
    const T made = static_cast<T>(mixed(number) % (sizeof(T) < 4 ? 100 : 1000000));
    std::memcpy(to, &made, sizeof(made));
}

template <typename T> void combine_numbers(rule how, const unsigned char *from, unsigned char *into)
{
    T a;
    T b;
    std::memcpy(&a, from, sizeof(a));
    std::memcpy(&b, into, sizeof(b));
    switch (how) {
    case rule::replace:
        b = a;
        break;
    case rule::sum:
        b = static_cast<T>(b + a);
        break;
    case rule::min:
        b = std::min(a, b);
        break;
    case rule::band:
        if constexpr (std::is_integral_v<T>) {
            b = static_cast<T>(a & b);
        }
        break;
    case rule::maxloc: // not for numbers
    case rule::no_op:
        break;
    }
    std::memcpy(into, &b, sizeof(b));
}

// As C lays out a value and an index. What is between and behind them stays as it is.
template <typename T> struct value_and_index {
    T value;
    int index;
};

template <typename T> void put_pair(unsigned char *to, std::uint64_t number)
{
    // Few values, so that the index often decides.
    const T value = static_cast<T>(mixed(number) % 5);
    const int index = static_cast<int>((mixed(number) >> 8) % 1000);
    std::memcpy(to + offsetof(value_and_index<T>, value), &value, sizeof(value));
    std::memcpy(to + offsetof(value_and_index<T>, index), &index, sizeof(index));
}

template <typename T> void combine_pairs(rule how, const unsigned char *from, unsigned char *into)
{
    value_and_index<T> a;
    value_and_index<T> b;
    std::memcpy(&a, from, sizeof(a));
    std::memcpy(&b, into, sizeof(b));
    const bool is_first = a.value > b.value || (!(a.value < b.value) && a.index < b.index);
    if (rule::replace == how || (rule::maxloc == how && is_first)) {
        std::memcpy(into + offsetof(value_and_index<T>, value), &a.value, sizeof(a.value));
        std::memcpy(into + offsetof(value_and_index<T>, index), &a.index, sizeof(a.index));
    }
}

template <typename T> element number_element(const char *name, MPI_Datatype type)
{
    return {name, type, sizeof(T), put_number<T>, combine_numbers<T>};
}

template <typename T> element pair_element(const char *name, MPI_Datatype type)
{
    return {name, type, sizeof(value_and_index<T>), put_pair<T>, combine_pairs<T>};
}

inline const element &byte_element()
{
    static const element one = number_element<unsigned char>("byte", MPI_BYTE);
    return one;
}
inline const element &int_element()
{
    static const element one = number_element<int>("int", MPI_INT);
    return one;
}
inline const element &long_element()
{
    static const element one = number_element<std::int64_t>("int64", MPI_INT64_T);
    return one;
}
inline const element &double_element()
{
    static const element one = number_element<double>("double", MPI_DOUBLE);
    return one;
}
inline const element &two_int_element()
{
    static const element one = pair_element<int>("two int", MPI_2INT);
    return one;
}
inline const element &double_int_element()
{
    static const element one = pair_element<double>("double and int", MPI_DOUBLE_INT);
    return one;
}

// --- memory --------------------------------------------------------------------------------------

// Memory of one kind, and what it is to hold.
class watched {
  public:
    watched(context &c, memory_kind kind, std::size_t len_bytes)
        : c_(&c), memory_(c.make(kind, len_bytes)), wanted_(len_bytes, bench::poison_byte)
    {
    }
    void *at(std::size_t offset = 0) const { return memory_->at(offset); }
    std::size_t len_bytes() const { return wanted_.size(); }
    memory_kind kind() const { return memory_->kind(); }
    unsigned char *wanted(std::size_t offset = 0) { return wanted_.data() + offset; }

    // What follows is about the first `len_bytes`. Poison is wanted there.
    void clear(std::size_t len_bytes)
    {
        std::fill_n(wanted_.begin(), len_bytes, bench::poison_byte);
    }
    // Elements, each from a number of its own, from `offset` on; wanted, not written.
    void want(std::size_t offset, const element &of, std::size_t count, std::uint64_t seed)
    {
        for (std::size_t i = 0; i < count; ++i) {
            of.put(wanted(offset + i * of.extent), seed + i);
        }
    }
    std::string read(void *to, std::size_t len_bytes) const
    {
        return memory_->read(0, to, len_bytes);
    }
    // Makes the memory hold what is wanted.
    void write(std::size_t len_bytes)
    {
        c_->expect(memory_->write(0, wanted_.data(), len_bytes), "fill");
    }
    // Writes something else over memory that MPI needs no more.
    void spoil(std::size_t len_bytes)
    {
        std::fill_n(wanted_.begin(), len_bytes, static_cast<unsigned char>(~bench::poison_byte));
        write(len_bytes);
    }
    bool check(std::size_t len_bytes, const std::string &what) const
    {
        bytes found(len_bytes);
        if (!c_->expect(memory_->read(0, found.data(), len_bytes), what)) {
            return false;
        }
        const auto wrong = std::mismatch(found.begin(), found.end(), wanted_.begin()).first;
        if (found.end() == wrong) {
            ++c_->messages;
            return true;
        }
        const auto at = static_cast<std::size_t>(wrong - found.begin());
        char text[96] = "";
        std::snprintf(text, sizeof(text), "byte %zu of %zu is 0x%02x instead of 0x%02x", at,
                      len_bytes, *wrong, wanted_[at]);
        return c_->expect(text, what);
    }

  private:
    context *c_;
    std::unique_ptr<buffer> memory_;
    bytes wanted_;
};

// A buffer of each kind for one purpose, now and then replaced by another allocation.
class buffers {
  public:
    buffers(context &c, std::size_t len_bytes) : c_(c), len_bytes_(len_bytes) {}
    watched &of(memory_kind kind)
    {
        auto &one = all_[kind];
        if (nullptr == one.memory || one.uses++ > most_uses) {
            one = {nullptr, 0}; // the old one first
            one.memory = std::make_unique<watched>(c_, kind, len_bytes_);
        }
        return *one.memory;
    }

  private:
    static constexpr int most_uses = 40;
    struct used {
        std::unique_ptr<watched> memory;
        int uses = 0;
    };
    context &c_;
    std::size_t len_bytes_;
    std::map<memory_kind, used> all_;
};

// --- windows -------------------------------------------------------------------------------------

// Whether windows of such memory are served by Open MPI's own components. The environment variable
// GPUSM_TEST_STOCK_WINDOWS says it of those in host memory. What Open MPI 5.0.7 does wrong there is
// not tried.
inline bool is_stock(memory_kind window_kind)
{
    return nullptr != std::getenv("GPUSM_TEST_STOCK_WINDOWS") && !bench::is_gpu(window_kind);
}

// A window, freed with the object: collective. Its errors are returned.
class window_of {
  public:
    explicit window_of(context &c) : c_(&c) {}
    ~window_of() { free(); }
    window_of(const window_of &) = delete;
    window_of &operator=(const window_of &) = delete;

    // `make` is one of MPI's calls that make windows. False, on every rank of the communicator,
    // when it has failed on one of them; such a window is not freed.
    template <typename Make> bool open(MPI_Comm comm, const std::string &what, const Make &make)
    {
        at_step(what);
        int good = c_->mpi(make(&window_), what) ? 1 : 0;
        MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, comm);
        if (0 == good) {
            window_ = MPI_WIN_NULL;
            return false;
        }
        return c_->mpi(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), what);
    }
    bool create(MPI_Comm comm, void *base, std::size_t len_bytes, int unit, const std::string &what)
    {
        return open(comm, what, [&](MPI_Win *made) {
            return MPI_Win_create(base, static_cast<MPI_Aint>(len_bytes), unit, MPI_INFO_NULL, comm,
                                  made);
        });
    }
    void free()
    {
        if (MPI_WIN_NULL != window_) {
            c_->mpi(MPI_Win_free(&window_), "MPI_Win_free");
        }
    }
    MPI_Win operator*() const { return window_; }

  private:
    context *c_;
    MPI_Win window_ = MPI_WIN_NULL;
};

// A window, and the memory that it is of.
struct exposed {
    watched memory;
    window_of window;

    exposed(context &c, memory_kind kind, std::size_t len_bytes)
        : memory(c, kind, len_bytes), window(c)
    {
    }
};

// What the owner does to its own window's memory between epochs of others.
template <typename Work> void in_own_epoch(context &c, MPI_Win window, int own_rank, Work work)
{
    c.mpi(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, own_rank, 0, window), "MPI_Win_lock of oneself");
    work();
    c.mpi(MPI_Win_unlock(own_rank, window), "MPI_Win_unlock of oneself");
}

} // namespace gpusm::exchange::windows

#endif
