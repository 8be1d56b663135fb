# Prints C source: for a number, a function of it; for "main", the sum of all.
if [ "$1" = main ]; then
	echo '#include <stdio.h>'
	for i in $(seq 1 24); do echo "unsigned f$i(unsigned);"; done
	echo 'int main(void) { unsigned s = 0;'
	for i in $(seq 1 24); do echo "s = s * 31 + f$i(s);"; done
	echo 'printf("%u", s); return 0; }'
	exit
fi
for j in $(seq 1 40); do
	echo "static unsigned g$j(unsigned x) { for (unsigned i = 0; i < (x & 7) + $j; i++) x = x * $((j * 2 + 1))u + (x >> $((j % 7 + 1))) + $1u; return x; }"
done
echo "unsigned f$1(unsigned x) {"
for j in $(seq 1 40); do echo "x += g$j(x);"; done
echo 'return x; }'
