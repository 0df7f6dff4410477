#include "prism/distributed/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/error_of.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_for(const Variables& variables) {
  return error_of([&] { read(variables); });
}

TEST(RankEnvironment, IsOneProcessWhereNothingIsSet) {
  EXPECT_EQ(read({}).size, 1);
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size, 1);
  EXPECT_EQ(read({{"RANK", "3"}}).size, 1);  // other programs set it too
}

TEST(RankEnvironment, ReadsTorchrun) {
  const RankEnvironment place = read({{"RANK", "5"},
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "node0"},
                                      {"MASTER_PORT", "1234"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.address, "node0");
  EXPECT_EQ(place.port, 1234);
  EXPECT_TRUE(place.store_is_there);
  EXPECT_EQ(place.attempt, 2);
}

TEST(RankEnvironment, ReadsMpirun) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const RankEnvironment place = read(variables);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_EQ(place.port, 29500);
  EXPECT_FALSE(place.store_is_there);
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(error_for(variables), HasSubstr("no MASTER_ADDR"));
  variables["MASTER_ADDR"] = "node0";
  EXPECT_THAT(error_for(variables), HasSubstr("no MASTER_PORT, a free port of node0"));
}

TEST(RankEnvironment, MistakesNameTheVariable) {
  const Variables good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29501"}};
  EXPECT_EQ(error_for(good), "no error");
  const auto with = [&](const std::string& name, const std::string& value) {
    Variables variables = good;
    variables[name] = value;
    return error_for(variables);
  };
  EXPECT_THAT(with("RANK", "2"), HasSubstr("RANK is \"2\", expected 0 to 1"));
  EXPECT_THAT(with("RANK", "-1"), HasSubstr("RANK is \"-1\""));
  EXPECT_THAT(with("WORLD_SIZE", "two"), HasSubstr("WORLD_SIZE is \"two\""));
  EXPECT_THAT(with("WORLD_SIZE", ""), HasSubstr("WORLD_SIZE is \"\""));
  EXPECT_THAT(with("MASTER_PORT", "99999"), HasSubstr("MASTER_PORT is \"99999\""));
  EXPECT_THAT(error_for({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is 2 but RANK is not set"));
}

}  // namespace
}  // namespace prism
