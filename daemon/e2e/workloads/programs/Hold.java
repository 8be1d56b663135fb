import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Holds words on the heap, beside garbage, threads and a timer; see workers.py. */
class Hold {
    public static void main(String[] args) throws Exception {
        AtomicLong ticks = new AtomicLong();
        ScheduledExecutorService pool = Executors.newScheduledThreadPool(4);
        pool.scheduleAtFixedRate(ticks::incrementAndGet, 0, 10, TimeUnit.MILLISECONDS);
        List<String> words = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            String word = line;
            if (!word.equals("?")) {
                pool.submit(() -> words.add(word)).get();
                byte[][] garbage = new byte[200][];
                for (int i = 0; i < 2000; i++) garbage[i % 200] = new byte[10000];
                long was = ticks.get();
                while (ticks.get() == was) Thread.sleep(1);
            }
            System.out.println("<" + words + ">");
        }
    }
}
