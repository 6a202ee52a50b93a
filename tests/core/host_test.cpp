#define BOOST_TEST_MODULE core_host
#define BOOST_TEST_DYN_LINK
#include "core/host.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <thread>
#include <vector>

namespace ebb {
namespace {

BOOST_AUTO_TEST_CASE(log_lines_carry_the_module_and_no_control_characters) {
  std::vector<std::string> lines;
  HostServices services(
      [&lines](LogLevel level, std::string_view text) {
        lines.push_back(std::to_string(static_cast<int>(level)) + std::string(text));
      },
      0);
  Host& first = services.host_for("swap_x");
  Host& second = services.host_for("comm_x");
  first.log(LogLevel::info, "4 slots");
  second.log(LogLevel::error, "a\nb\x1b[0m");
  BOOST_TEST(lines == (std::vector<std::string>{"1swap_x: 4 slots", "3comm_x: a\\x0ab\\x1b[0m"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(without_a_sink_lines_go_nowhere) {
  HostServices services(nullptr, 0);
  services.host_for("x").log(LogLevel::warning, "unheard");
}

BOOST_AUTO_TEST_CASE(every_host_sees_parts_once_they_are_set) {
  HostServices services(nullptr, 77);
  Host& early = services.host_for("early");
  BOOST_TEST(early.seed() == 77u);
  BOOST_TEST(early.loader() == nullptr);
  BOOST_TEST(early.compute() == nullptr);
  BOOST_TEST(early.comm() == nullptr);
  BOOST_TEST(early.attention() == nullptr);
  int marker[4];  // addresses to tell apart; never read
  services.parts() = {reinterpret_cast<Loader*>(&marker[0]), reinterpret_cast<Compute*>(&marker[1]),
                      reinterpret_cast<Comm*>(&marker[2]),
                      reinterpret_cast<Attention*>(&marker[3])};
  for (Host* host : {&early, &services.host_for("late")}) {
    BOOST_TEST(static_cast<void*>(host->loader()) == &marker[0]);
    BOOST_TEST(static_cast<void*>(host->compute()) == &marker[1]);
    BOOST_TEST(static_cast<void*>(host->comm()) == &marker[2]);
    BOOST_TEST(static_cast<void*>(host->attention()) == &marker[3]);
  }
}

BOOST_AUTO_TEST_CASE(thread_tags_follow_bind_thread) {
  HostServices services(nullptr, 0);
  BOOST_TEST(services.on_thread(ThreadTag::startup));
  BOOST_TEST(services.on_thread(ThreadTag::decode));
  BOOST_TEST(!services.on_thread(ThreadTag::copy));
  std::thread([&services] {
    BOOST_TEST(!services.on_thread(ThreadTag::decode));
    services.bind_thread(ThreadTag::decode);
    BOOST_TEST(services.on_thread(ThreadTag::decode));
    BOOST_TEST(!services.on_thread(ThreadTag::startup));
  }).join();
  BOOST_TEST(!services.on_thread(ThreadTag::decode));
  BOOST_TEST(services.on_thread(ThreadTag::startup));
}

// How a child process that calls assert_thread ends: 0, or the signal.
int end_of_assert(Host& host, ThreadTag tag) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    host.assert_thread(tag);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

BOOST_AUTO_TEST_CASE(assert_thread_stops_debug_builds_only) {
  HostServices services(nullptr, 0);
  Host& host = services.host_for("x");
  BOOST_TEST(end_of_assert(host, ThreadTag::decode) == 0);
#ifdef NDEBUG
  BOOST_TEST(end_of_assert(host, ThreadTag::copy) == 0);
#else
  BOOST_TEST(end_of_assert(host, ThreadTag::copy) == SIGABRT);
#endif
}

}  // namespace
}  // namespace ebb
