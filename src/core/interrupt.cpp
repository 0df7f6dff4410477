#include "prism/core/interrupt.h"

#include <csignal>

namespace prism {
namespace {

volatile std::sig_atomic_t g_pending = 0;
struct sigaction g_old_int, g_old_term;

}  // namespace

extern "C" {
static void remember_signal(int signal) { g_pending = signal; }
}

InterruptGuard::InterruptGuard() {
  g_pending = 0;
  struct sigaction action = {};
  action.sa_handler = remember_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the second signal has its usual effect
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
}

int InterruptGuard::pending() { return g_pending; }

}  // namespace prism
