// prism evaluate, recommend and export, run as a user runs them on a small trained run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "apps/process.h"
#include "apps/run_prism.h"
#include "prism/core/safetensors.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

/// A folder with a log of 30 users, titles, and a run of one epoch on it.
class RunCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(::testing::TempDir()) / ("prism-run-commands-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::string log = "user_id,item_id,timestamp\n", titles = "item_id\ttitle\n";
    for (int user = 0; user < 30; ++user)
      for (int place = 0; place < 5 + user % 4; ++place)
        log += fmt::format("u{},i{},{}\n", user, (user * 7 + place * place) % 25, place * 60);
    for (int item = 0; item < 25; ++item) titles += fmt::format("i{}\tTitle, the {}th\n", item, item);
    write_file(path("log.csv"), log);
    write_file(path("titles.tsv"), titles);
    const Outcome train =
        run_prism(fmt::format("train {} --titles {} --out {} --epochs 1 --width 16 --max-length 8 --quiet",
                              path("log.csv"), path("titles.tsv"), run()));
    ASSERT_EQ(train.status, 0) << train.err;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static std::string path(const std::string& name) { return (folder_ / name).string(); }
  static std::string run() { return path("run"); }
  static fs::path folder_;
};
fs::path RunCommands::folder_;

std::vector<std::string> items_of(const json& list) {
  std::vector<std::string> items;
  for (const json& one : list["recommendations"]) items.push_back(one["item"]);
  return items;
}

TEST_F(RunCommands, EvaluateGivesTheFiguresOfTraining) {
  const json result = run_prism("evaluate " + run() + " --json").json();
  const json trained = json::parse(read_file(run() + "/results.json"));
  for (const char* part : {"test", "valid"}) {
    for (const char* name : {"HR@10", "NDCG@10", "MRR", "AUC"})
      EXPECT_EQ(result[part]["model"][name], trained[part]["model"][name]) << part << " " << name;
    for (const char* baseline : {"popularity", "markov"})
      EXPECT_EQ(result[part][baseline]["HR@10"], trained[part][baseline]["HR@10"]);
  }
  EXPECT_EQ(result["protocol"]["ranking"], "full");
  EXPECT_EQ(result["protocol"]["filter_seen"], true);
  EXPECT_EQ(result["protocol"]["candidates"], 25);
  const json other = run_prism("evaluate " + run() + " --json --no-filter-seen --ks 3").json();
  EXPECT_EQ(other["protocol"]["filter_seen"], false);
  EXPECT_TRUE(other["test"]["model"].contains("NDCG@3"));
  const json sampled = run_prism("evaluate " + run() + " --json --sampled 5").json();
  EXPECT_THAT(sampled["protocol"]["ranking"].get<std::string>(), HasSubstr("sampled"));
  EXPECT_FALSE(sampled["test"].contains("markov"));
  EXPECT_THAT(run_prism("evaluate " + run()).out, HasSubstr("items of the history hidden"));
}

TEST_F(RunCommands, ListsThatNameNothingAreRefused) {
  const Outcome allow = run_prism("recommend " + run() + " --items i1 --allow ''");
  EXPECT_EQ(allow.status, 1);
  EXPECT_THAT(allow.err, HasSubstr("names no item"));
  EXPECT_THAT(run_prism("recommend " + run() + " --user ''").err,
              HasSubstr("user \"\" is not among the 30 users"));
  EXPECT_THAT(run_prism("recommend " + run() + " --input " + path("")).err, HasSubstr("is a folder"));
}

TEST_F(RunCommands, APipeIsWrittenNotReplaced) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::string first;
  std::thread reader([&] {
    std::ifstream file(path("pipe"));
    std::getline(file, first);
    for (std::string rest; std::getline(file, rest);) {
    }  // to the end: a pipe without a reader would end the writer
  });
  EXPECT_EQ(run_prism("recommend " + run() + " --all-users --out " + path("pipe")).status, 0);
  reader.join();
  EXPECT_EQ(first, "user,rank,item,score,title");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(RunCommands, EditedItemNamesAreRefused) {
  const std::string items = read_file(run() + "/items.txt");
  write_file(run() + "/items.txt", "x" + items);
  const Outcome outcome = run_prism("evaluate " + run());
  write_file(run() + "/items.txt", items);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("is not the list of items"));
}

TEST_F(RunCommands, MixersAndTheBuildAreJsonToo) {
  EXPECT_TRUE(run_prism("mixers --json").json().contains("prism"));
  EXPECT_EQ(run_prism("mixers prism --json").json()["steps"]["default"], "2");
  EXPECT_TRUE(run_prism("--json --version").json().contains("commit"));
}

TEST_F(RunCommands, ThreadsAndBatchesChangeNoFigure) {
  const std::string expected = run_prism("evaluate " + run() + " --json").out;
  EXPECT_EQ(run_prism("evaluate " + run() + " --json --threads 1 --batch-tokens 7").out, expected);
}

TEST_F(RunCommands, MovedLogNamesTheOption) {
  fs::rename(path("log.csv"), path("moved.csv"));
  const Outcome lost = run_prism("evaluate " + run()),
                found = run_prism("evaluate " + run() + " --data " + path("moved.csv"));
  fs::rename(path("moved.csv"), path("log.csv"));
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.err, HasSubstr("--data"));
  EXPECT_EQ(found.status, 0) << found.err;
}

TEST_F(RunCommands, RecommendsForAUserAHistoryAFileAndEveryone) {
  const json user = run_prism("recommend " + run() + " --user u3 --top 4 --json").json();
  EXPECT_EQ(user["user"], "u3");
  EXPECT_EQ(items_of(user).size(), 4U);
  EXPECT_THAT(user["recommendations"][0]["title"].get<std::string>(), HasSubstr("Title, the "));
  // User 3 saw i21, i22, i0, i5, i12, i21, i7, i20.
  const json items =
      run_prism("recommend " + run() + " --items i21,i22,i0,i5,i12,i21,i7,i20 --top 4 --json").json();
  EXPECT_EQ(items["recommendations"], user["recommendations"]);
  write_file(path("histories"), "i21 i22 i0 i5 i12 i21 i7 i20\n\nnobody\ti1\n");
  std::stringstream lines(
      run_prism("recommend " + run() + " --input " + path("histories") + " --top 4 --json").out);
  std::vector<json> lists;
  for (std::string line; std::getline(lines, line);) lists.push_back(json::parse(line));
  ASSERT_EQ(lists.size(), 3U);
  EXPECT_EQ(lists[0]["recommendations"], user["recommendations"]);
  EXPECT_EQ(lists[1]["by_popularity"], true);
  EXPECT_EQ(lists[2]["unknown_items"], json({"nobody"}));
  const Outcome all = run_prism("recommend " + run() + " --all-users --top 4 --out " + path("all.csv"));
  EXPECT_EQ(all.status, 0) << all.err;
  const std::string csv = read_file(path("all.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 30 * 4);
  EXPECT_THAT(csv, HasSubstr("user,rank,item,score,title\n"));
  EXPECT_THAT(csv, HasSubstr("\nu3,1," + items_of(user)[0] + ","));
  EXPECT_THAT(csv, HasSubstr("\"Title, the"));
}

TEST_F(RunCommands, FiltersUnknownItemsAndWrongUsage) {
  const std::string base = "recommend " + run() + " --items i1,i2 ";
  EXPECT_EQ(items_of(run_prism(base + "--allow i1,i4 --no-filter-seen --json").json()).size(), 2U);
  write_file(path("list"), "i3\r\ni4\n");
  EXPECT_EQ(items_of(run_prism(base + "--allow @" + path("list") + " --exclude i3 --json").json()),
            std::vector<std::string>{"i4"});
  EXPECT_THAT(run_prism(base + "--exclude nothing").err, HasSubstr("\"nothing\""));
  EXPECT_THAT(run_prism("recommend " + run() + " --items ''").err, HasSubstr("most popular"));
  const Outcome nobody = run_prism("recommend " + run() + " --user nobody");
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.err, HasSubstr("\"nobody\" is not among the 30 users"));
  EXPECT_EQ(run_prism("recommend " + run()).status, 2);
  EXPECT_EQ(run_prism("recommend " + run() + " --items i1 --user u1").status, 2);
  EXPECT_EQ(run_prism("recommend " + path("nothing") + " --items i1").status, 2);
}

TEST_F(RunCommands, InterruptedBatchLeavesAWholeFileOrNone) {
  std::string log = "user_id,item_id,timestamp\n";
  for (int user = 0; user < 30000; ++user)
    for (int place = 0; place < 4; ++place)
      log += fmt::format("v{},i{},{}\n", user, (user + place) % 25, place);
  write_file(path("many.csv"), log);
  for (const int milliseconds : {100, 400, 800}) {
    fs::remove(path("many.out"));
    const Process process(
        {"recommend", run(), "--all-users", "--data", path("many.csv"), "--out", path("many.out")},
        path("process"));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.kill(SIGINT);
    const int status = process.wait();
    if (status == -SIGINT) continue;  // before the program listens, or after the file is whole
    EXPECT_EQ(fs::exists(path("many.out")), status == 0) << status << process.err();
    if (status == 0) continue;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("many.out")));
  }
}

TEST_F(RunCommands, ExportsVectorsThatAgreeInEveryFormat) {
  const Outcome outcome = run_prism("export " + run() + " --users --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string folder = outcome.json()["folder"];
  for (const auto& [name, rows] : {std::pair{"item_vectors", 25}, {"user_vectors", 30}}) {
    const std::string npy = read_file(folder + "/" + name + ".npy");
    const Safetensors tensors = read_safetensors(folder + "/" + name + ".safetensors");
    const at::Tensor& vectors = tensors.tensors.at(name);
    ASSERT_EQ(vectors.sizes(), (std::vector<int64_t>{rows, 16}));
    const size_t bytes = static_cast<size_t>(rows) * 16 * sizeof(float);
    EXPECT_EQ(npy.substr(1, 5), "NUMPY");
    EXPECT_EQ((npy.size() - bytes) % 64, 0U);
    EXPECT_EQ(std::memcmp(npy.data() + npy.size() - bytes, vectors.const_data_ptr(), bytes), 0);
    std::stringstream tsv(read_file(folder + "/" + name + ".tsv"));
    std::string id;
    float first = 0;
    tsv >> id >> first;
    EXPECT_EQ(id, rows == 25 ? "i0" : "u0");
    EXPECT_EQ(first, vectors.const_data_ptr<float>()[0]);
  }
  EXPECT_THAT(read_file(folder + "/items.tsv"),
              HasSubstr("row\titem_id\ttrain_interactions\ttitle\n0\ti0\t"));
  EXPECT_TRUE(json::parse(read_file(folder + "/config.json")).contains("model"));
}

TEST(SeenEverything, EmptyListWithAReasonOrAllFive) {
  const std::string file = shared_file("broken/14_seen_everything.csv");
  if (!fs::exists(file)) GTEST_SKIP() << "skipped: no " << file;
  const std::string run = ::testing::TempDir() + "prism-seen-" + std::to_string(::getpid());
  ASSERT_EQ(run_prism("train " + file + " --out " + run + " --epochs 1 --width 16 --quiet").status, 0);
  const Outcome none = run_prism("recommend " + run + " --user all --json");
  EXPECT_EQ(none.status, 0);
  EXPECT_TRUE(none.json()["recommendations"].empty());
  EXPECT_THAT(none.json()["note"].get<std::string>(), HasSubstr("every one of the 5 items"));
  EXPECT_EQ(
      items_of(run_prism("recommend " + run + " --user all --top 10 --no-filter-seen --json").json()).size(),
      5U);
  fs::remove_all(run);
}

}  // namespace
}  // namespace prism
