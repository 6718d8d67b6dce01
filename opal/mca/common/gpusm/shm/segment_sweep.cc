// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/segment.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpusm {

namespace {

// The segment whose path stands before `path`'s last suffix, or empty: `path` is a segment's.
std::string segment_of_companion(const std::string &path)
{
    const std::size_t name = path.rfind('/') + 1;
    constexpr std::ptrdiff_t dots_of_segment = 4; // see segment_path()
    const std::ptrdiff_t dots =
        std::count(path.begin() + static_cast<std::ptrdiff_t>(name), path.end(), '.');
    return dots > dots_of_segment ? path.substr(0, path.rfind('.')) : std::string();
}

// Nobody holds the lock that a living owner has.
bool is_orphan(const std::string &path)
{
    struct stat about;
    // A file without a length is one that its owner is about to lock.
    if (0 != lstat(path.c_str(), &about) || !S_ISREG(about.st_mode) || about.st_uid != geteuid() ||
        0 == about.st_size) {
        return false;
    }
    // O_NONBLOCK: whoever has a lease on the file is not waited for.
    const file_mapping file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    return file.fd() >= 0 && 0 == flock(file.fd(), LOCK_EX | LOCK_NB);
}

} // namespace

int segment_sweep(const std::string &directory)
{
    char prefix[32];
    std::snprintf(prefix, sizeof(prefix), "gpusm.%u.", static_cast<unsigned>(geteuid()));
    DIR *entries = opendir(directory.c_str());
    if (nullptr == entries) {
        return 0;
    }
    std::vector<std::string> companions;
    int removed = 0;
    while (const dirent *entry = readdir(entries)) {
        if (std::strncmp(entry->d_name, prefix, std::strlen(prefix)) != 0) {
            continue;
        }
        const std::string path = directory + "/" + entry->d_name;
        if (!segment_of_companion(path).empty()) {
            companions.push_back(path);
        } else if (is_orphan(path)) {
            removed += 0 == unlink(path.c_str()) ? 1 : 0;
        }
    }
    (void)closedir(entries);
    for (const std::string &each : companions) { // a living process has its segment file
        const bool is_alone = 0 != access(segment_of_companion(each).c_str(), F_OK);
        removed += is_alone && 0 == unlink(each.c_str()) ? 1 : 0;
    }
    return removed;
}

} // namespace gpusm
