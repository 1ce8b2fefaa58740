"""placeholder"""
import sys
