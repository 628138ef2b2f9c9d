/* Preloaded: every file system answers as one without locks. For tests/machine/test_places.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

static int answer(int fd, int command, void *argument) {
  if (command != F_SETLK && command != F_SETLKW) return syscall(SYS_fcntl, fd, command, argument);
  errno = ENOLCK;
  return -1;
}

#define FCNTL(name) \
  int name(int fd, int command, ...) { \
    va_list rest; \
    va_start(rest, command); \
    void *argument = va_arg(rest, void *); \
    va_end(rest); \
    return answer(fd, command, argument); \
  }
FCNTL(fcntl)
FCNTL(fcntl64)
